package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// endTime bounds a COMMIT or a ROLLBACK, which the caller's context does not
// end.
const endTime = 10 * time.Second

// body is the work of a transaction, as [Store.Transact] calls it.
type body = func(pgx.Tx, []once.Record) ([]once.Settlement, error)

// Transact runs work in a transaction together with its claims. BEGIN and the
// claims of new keys are one round trip, and so are the settlements and COMMIT. It
// calls work if a claim was won. The isolation level is that of Options.Isolation.
// A single claim that says how it is Expected to end is looked up first if many
// were lost lately.
//
// If the request is Speculative, BEGIN and the claim are sent together with the
// first statement of work, if that reads or writes rows and is sent by Exec,
// Query or QueryRow: then they cost no round trip. Work without statements
// takes one round trip in all.
//
// Transact does not wait for a transaction in flight on a key, whatever the
// Wait of a request. If it returns an error, the records are nil.
//
// The end of ctx cancels neither the transaction nor its commit. But if work
// gives a statement a context that ends, pgx closes the connection, and nothing
// is committed.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest,
	work func(pgx.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	if err := s.ready(ctx, s.pool); err != nil || len(rs) == 0 {
		return nil, err
	}
	tx, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { // after a panic as well
		tx.release(ctx)
		if tx.use == connEnded {
			recs, err = nil, s.parkAbandoned(ctx, rs, err)
		}
	}()
	if isSpeculative(rs) {
		recs, decided, err := s.speculate(ctx, tx, rs[0], work)
		if decided {
			return recs, err
		}
		tx.restart(ctx)
	} else if s.isForeseen(rs) {
		if rec, err := s.readIfLikely(ctx, tx.conn, &s.losses.transact, rs[0]); err != nil || rec.Status != once.Absent {
			return oneRecord(rec, err)
		}
	}
	return s.transact(ctx, tx, rs, work)
}

// transact begins and claims, calls work, settles and commits.
func (s *Store) transact(ctx context.Context, tx *handle, rs []once.ClaimRequest, work body) ([]once.Record, error) {
	look := s.newLookAhead(ctx)
	claims, err := s.beginAndClaim(ctx, tx.conn, rs, look)
	if s.lacksStatement(err) {
		tx.restart(ctx)
		if err := tx.conn.DeallocateAll(ctx); err != nil {
			return nil, explain(err)
		}
		look = s.newLookAhead(ctx)
		claims, err = s.beginAndClaim(ctx, tx.conn, rs, look)
	}
	if err != nil {
		return nil, err
	}
	if !anyWon(rs, claims.recs) {
		return claims.recs, nil
	}
	tx.reserved, tx.foreseen, tx.look = claims.reserved, claims.foreseen, look
	sets, err := tx.run(ctx, slices.Clone(claims.recs), work)
	switch {
	case err != nil && claims.overtaken(ctx, tx.conn):
		return nil, fmt.Errorf("%w: another claim was committed at the same moment: %w", once.ErrConflict, err)
	case err != nil:
		return nil, pgerr.Conflict(err)
	}
	b := new(pgx.Batch)
	if err := claims.settle(b, sets); err != nil {
		return nil, err
	}
	if tx.use == connHandedOut && s.deallocated.Load() && checkOpen(tx.conn) == nil {
		if err := tx.conn.DeallocateAll(context.WithoutCancel(ctx)); err != nil {
			return nil, explain(err)
		}
	}
	if err := tx.commit(ctx, b); err != nil {
		s.lacksStatement(err)
		return nil, err
	}
	return claims.recs, nil
}

// lacksStatement reports whether err says that a prepared statement is gone. Work
// that gets the connection can deallocate those that pgx has prepared, and pgx
// does not notice. If some did, pgx prepares them anew before each commit of a
// connection that was handed out.
func (s *Store) lacksStatement(err error) bool {
	lacks := pgerr.State(err) == pgerr.NoStatement
	if lacks {
		s.deallocated.Store(true)
	}
	return lacks
}

// beginAndClaim begins a transaction and claims, in one round trip if the keys
// are new. Look may be nil.
func (s *Store) beginAndClaim(ctx context.Context, conn *pgx.Conn, rs []once.ClaimRequest, look *lookAhead) (*txClaims, error) {
	if c := s.newReservations(rs); c != nil {
		c.look = look
		return c, c.begin(ctx, conn)
	}
	c := &txClaims{store: s, rs: rs, look: look, isReserved: make([]bool, len(rs))}
	if s.isForeseen(rs) {
		return c, c.beginForeseen(ctx, conn)
	}
	look.discard()
	b := new(pgx.Batch)
	b.Queue(s.begin)
	recs, err := s.claims(ctx, conn, b, rs)
	c.recs = recs
	return c, err
}

// queueSettlements queues settlements of claims that have a row. If the row is
// not there to be changed, the statement fails and the server skips what
// follows it. So a transaction commits nothing if it is not the one that
// claimed.
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
		if rec.HeldBy(rs[i].Owner) {
			return true
		}
	}
	return false
}

// commit sends the settlements that b has, the messages that were put, and
// COMMIT, in one round trip.
func (h *handle) commit(ctx context.Context, b *pgx.Batch) error {
	if err := checkOpen(h.conn); err != nil {
		return err
	}
	settlements := b.Len()
	if err := h.queuePuts(b); err != nil {
		return err
	}
	before := b.Len()
	b.Queue("commit")
	defer limit(h.conn).end()
	results := h.conn.SendBatch(context.WithoutCancel(ctx), b)
	defer results.Close()
	for i := range before {
		switch _, err := results.Exec(); {
		case err != nil && i < settlements:
			return settleFailed(err)
		case err != nil:
			return putFailed(err)
		}
	}
	return checkCommit(results.Exec())
}

// checkCommit checks the reply to a COMMIT.
func checkCommit(tag pgconn.CommandTag, err error) error {
	switch {
	case err != nil:
		return commitFailed(err)
	case tag.String() != "COMMIT":
		return fmt.Errorf("once: PostgreSQL answered COMMIT with %s: %s", tag, pgerr.IgnoredError)
	}
	return nil
}

// checkOpen checks the state in which work has left the connection, before
// anything is sent.
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

// rollback ends a transaction that is still open. If the server cannot be
// reached, the transaction ends with its connection.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	defer limit(conn).end()
	_, _ = conn.Exec(context.WithoutCancel(ctx), "rollback")
}

func oneRecord(rec once.Record, err error) ([]once.Record, error) {
	if err != nil {
		return nil, err
	}
	return []once.Record{rec}, nil
}
