package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// endTime bounds how long a COMMIT or a ROLLBACK may take, which the caller's context does not.
const endTime = 10 * time.Second

// Transact runs body in a transaction together with its claims. BEGIN and the claims are one round trip, and so
// are the settlements and COMMIT. body is called when the claims are won. For a Request that is Speculative, BEGIN and the claim travel with the first statement of
// body, if that is a SELECT, INSERT, UPDATE or the like that is sent by Exec, Query or QueryRow, and cost no round trip;
// a body without statements takes one round trip in all. The isolation level is that of Options.Isolation.
//
// A transaction in flight on a key is not waited for, whatever the Wait of a Request. With an error, the
// records are nil.
//
// That ctx ends cancels neither the transaction nor its commit. But if body gives a statement a context that ends,
// pgx closes the connection, and nothing is committed.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(pgx.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	if err := s.ready(ctx, s.pool); err != nil || len(rs) == 0 {
		return nil, err
	}
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, explain(err)
	}
	var tx *handle
	defer func() { // when the connection is free
		tx.ring()
		if tx != nil && tx.left {
			recs, err = nil, s.parkLeft(ctx, rs, err)
		}
	}()
	work := body
	body = func(of pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		return noticing(ctx, tx, func() ([]once.Settlement, error) { return work(of, recs) })
	}
	defer pooled.Release() // closes a connection that could not leave its transaction
	conn := pooled.Conn()
	if tx, err = s.newHandle(ctx, conn); err != nil {
		return nil, explain(err)
	}
	defer rollback(ctx, conn) // whatever way out is taken, a panic included; nothing after a commit
	defer tx.end()

	if isSpeculative(rs) {
		if recs, sure, err := s.speculate(ctx, conn, tx, rs[0], body); sure {
			return recs, err
		}
		rollback(ctx, conn)
	}
	claimed, err := s.begun(ctx, conn, rs)
	if err != nil {
		return nil, err
	}
	if !anyWon(rs, claimed.recs) {
		return claimed.recs, nil
	}
	tx.own, tx.puts = claimed.has, puts{} // nothing is left of what was put by a speculative run
	sets, err := body(tx, slices.Clone(claimed.recs))
	switch {
	case err != nil && claimed.overtaken(ctx, conn):
		return nil, fmt.Errorf("%w: another claim was committed at the same moment: %w", once.ErrConflict, err)
	case err != nil:
		return nil, conflict(err)
	}
	b := new(pgx.Batch)
	if err := claimed.settle(b, sets); err != nil {
		return nil, err
	}
	if err := tx.commit(ctx, b); err != nil {
		return nil, err
	}
	return claimed.recs, nil
}

// begun begins a transaction and claims. Several claims are reservations, as far as that goes.
func (s *Store) begun(ctx context.Context, conn *pgx.Conn, rs []once.ClaimRequest) (*reservation, error) {
	if v := s.newReservation(rs); v != nil {
		return v, v.begin(ctx, conn)
	}
	b := new(pgx.Batch)
	b.Queue(s.begin)
	recs, err := s.claims(ctx, conn, b, rs)
	return &reservation{store: s, rs: rs, recs: recs, locked: make([]bool, len(rs))}, err
}

// queueSettlements queues ends of claims that have their rows. A settlement that has no row to change is an error on the
// server, which then skips what is behind it: so nothing is committed by a transaction that is not the one that claimed.
func (s *Store) queueSettlements(b *pgx.Batch, sets []once.Settlement) error {
	for _, set := range sets {
		args, err := settleArgs(set)
		if err != nil {
			return err
		}
		b.Queue(s.sql.mustSettle, args...)
	}
	return nil
}

func anyWon(rs []once.ClaimRequest, recs []once.Record) bool {
	for i, rec := range recs {
		// One that lapsed while it waited is nobody else's.
		if (rec.Status == once.Running || rec.Status == once.Unknown) && rec.Owner == rs[i].Owner {
			return true
		}
	}
	return false
}

// commit sends what is queued, the messages that were put, and COMMIT, in one round trip.
func (h *handle) commit(ctx context.Context, b *pgx.Batch) error {
	conn := h.Tx.Conn()
	if err := checkOpen(conn); err != nil {
		return err
	}
	settlements := b.Len()
	if err := h.queuePuts(b); err != nil {
		return err
	}
	before := b.Len()
	b.Queue("commit")
	defer limit(conn).end()
	replies := conn.SendBatch(context.WithoutCancel(ctx), b)
	defer replies.Close()
	for i := range before {
		switch _, err := replies.Exec(); {
		case err != nil && i < settlements:
			return settleFailed(err)
		case err != nil:
			return putFailed(err)
		}
	}
	return committed(replies.Exec())
}

// committed judges the reply to a COMMIT.
func committed(tag pgconn.CommandTag, err error) error {
	switch {
	case err != nil:
		return commitFailed(err)
	case tag.String() != "COMMIT":
		return fmt.Errorf("once: PostgreSQL answered COMMIT with %s: %s", tag, passedOver)
	}
	return nil
}

// checkOpen looks at what body left behind, before anything is sent.
func checkOpen(conn *pgx.Conn) error {
	switch {
	case conn.IsClosed():
		return errors.New("once: the connection was lost in the transaction, so nothing was committed")
	case conn.PgConn().IsBusy():
		return errors.New("once: rows, a batch or a copy of this transaction are still open, so it was rolled back: " +
			"close them before returning")
	case conn.PgConn().TxStatus() == 'I':
		return errors.New("once: the transaction was ended by a statement in it, and what it did before may be committed: " +
			"return nil to commit, an error to roll back")
	}
	return nil
}

// rollback ends a transaction that is still open. One that it cannot reach ends with its connection.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	defer limit(conn).end()
	_, _ = conn.Exec(context.WithoutCancel(ctx), "rollback")
}
