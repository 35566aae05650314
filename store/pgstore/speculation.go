package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/deferredtx"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5"
)

// speculation is a transaction whose work is called before its claim was sent:
// BEGIN and the claim are sent with its first statement. [Store.speculate] is
// the only entry.
//
// If the outcome is expected, the claim writes the record as it will be in the
// end, and COMMIT follows by itself. Otherwise the claim takes the lock of the
// key and looks for a record, and the record is written together with COMMIT.
// In both cases it is written once, and the unique index decides.
type speculation struct {
	foreseen
	tx    *handle
	begin deferredtx.Tx // BEGIN and the claim
	lock  *deferredtx.Statement
}

// claimState is the state of a speculative claim.
type claimState int

const (
	claimWon      claimState = iota // or the error is not about the claim
	claimInFlight                   // another transaction in flight has the key
	claimRefused                    // something else refused it
)

func isSpeculative(rs []once.ClaimRequest) bool {
	return len(rs) == 1 && rs[0].Speculative && rs[0].Expected != nil && rs[0].Attempt == 0
}

// speculate calls work before its claim was sent. If many claims were lost
// lately, it looks for a record first. decided is false if the claim was lost
// and no record shows why: then the transaction has to be run without
// speculation. Whatever work returned does not count then, and is still to be
// rolled back.
func (s *Store) speculate(ctx context.Context, tx *handle, r once.ClaimRequest, work body) (recs []once.Record, decided bool, err error) {
	if rec, err := s.readIfLikely(ctx, tx.conn, &s.losses.transact, r); err != nil || rec.Status != once.Absent {
		recs, err := oneRecord(rec, err)
		return recs, true, err
	}
	rec := once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease, Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause}
	e := s.newSpeculation(ctx, tx, r)
	sets, err := e.run(ctx, rec, work)
	phase := e.begin.Phase()
	lost := phase == deferredtx.Refused || phase == deferredtx.Failed
	switch {
	case lost && tx.conn.IsClosed():
		return nil, true, e.connectionLost(err)
	case lost:
		return e.readWinner(ctx, claimStateOf(e.begin.Cause()))
	case phase == deferredtx.Unsent && err != nil:
		return nil, false, nil
	case err != nil && !e.known: // work may have met rows of a transaction whose commit the look was too early to see
		if recs, decided, missed := e.readWinner(ctx, claimRefused); decided && missed == nil {
			return recs, true, nil
		}
		return nil, true, pgerr.Conflict(err)
	case err != nil:
		return nil, true, pgerr.Conflict(err)
	}
	if err := e.check(sets); err != nil {
		return nil, true, err
	}
	switch state, err := e.commit(ctx, sets[0].Outcome); {
	case state != claimWon:
		return e.readWinner(ctx, state)
	case err != nil:
		return nil, true, err
	}
	s.losses.transact.Count(false)
	return []once.Record{rec}, true, nil
}

func (s *Store) newSpeculation(ctx context.Context, tx *handle, r once.ClaimRequest) *speculation {
	e := &speculation{foreseen: s.newForeseen(r), tx: tx,
		lock: s.records.lockBeforeClaim(r.Key.UUID())}
	opening := append(make([]deferredtx.Statement, 0, 3), deferredtx.Statement{SQL: s.begin})
	if e.lock != nil {
		opening = append(opening, *e.lock)
	}
	if e.known {
		opening = append(opening, deferredtx.Statement{SQL: s.sql.open, Args: e.record(r.Expected.Outcome)})
	} else {
		key := r.Key.UUID()
		opening = append(opening, deferredtx.Statement{SQL: s.sql.look, Args: []any{uuid(key), s.records.lock(key)}})
	}
	e.begin = deferredtx.New(ctx, tx.Tx, tx.conn, opening...)
	return e
}

// run calls work with a transaction that begins at its first statement.
func (e *speculation) run(ctx context.Context, rec once.Record, work body) ([]once.Settlement, error) {
	inner := e.tx.Tx
	e.tx.Tx, e.tx.reserved = &e.begin, func(k once.Key) bool { return k == e.r.Key }
	sets, err := e.tx.run(ctx, []once.Record{rec}, work)
	e.tx.Tx, e.tx.reserved = inner, nil
	return sets, err
}

// claimStateOf tells why the server has refused a claim.
func claimStateOf(err error) claimState {
	if pe, refused := pgerr.Refused(err); refused && failedWith(pe, keyInFlight) {
		return claimInFlight
	}
	return claimRefused
}

// readWinner rolls back, and returns the record that a lost claim has met.
// decided is false if there is none any more, or the claim failed for another
// reason.
func (e *speculation) readWinner(ctx context.Context, state claimState) (recs []once.Record, decided bool, err error) {
	rollback(ctx, e.tx.conn)
	rec, err := e.store.record(ctx, e.tx.conn, e.r.Key)
	switch {
	case err != nil:
		return nil, true, err
	case rec.Status == once.Absent && state == claimInFlight:
		rec = once.Record{Key: e.r.Key, Status: once.Running}
	case rec.Status == once.Absent:
		return nil, false, nil
	}
	e.store.losses.transact.Count(true)
	return []once.Record{rec}, true, nil
}

// connectionLost returns the error of a transaction whose connection was lost
// before its claim was known to be made. Nothing was committed, so the caller
// may try again, unless the deadline of the work itself has passed.
func (e *speculation) connectionLost(err error) error {
	if err != nil && (isContextError(err) || isContextError(e.begin.Cause())) {
		return err
	}
	return fmt.Errorf("%w: the connection was lost before the claim was made: %w", once.ErrConflict, explain(e.begin.Cause()))
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// commit ends the transaction in one round trip. If nothing was sent so far,
// that is the only one. An error together with claimWon is not about the claim.
func (e *speculation) commit(ctx context.Context, out once.Outcome) (claimState, error) {
	conn := e.tx.conn
	b := new(pgx.Batch)
	unsent := e.begin.Phase() == deferredtx.Unsent
	if unsent {
		b.Queue(e.store.begin)
	} else if err := checkOpen(conn); err != nil {
		return claimWon, err
	}
	claiming := unsent || !e.known
	switch {
	case claiming:
		if e.lock != nil {
			b.Queue(e.lock.SQL, e.lock.Args...)
		}
		b.Queue(e.store.sql.open, e.record(out)...)
	case e.begin.Opaque() || e.isSlow() || !equal(out, e.r.Expected.Outcome):
		b.Queue(e.store.sql.mustAmend, e.amendment(out)...)
	}
	defer limit(conn).end()
	ctx = context.WithoutCancel(ctx)
	claims := b.Len()
	if err := e.tx.queuePuts(b); err != nil {
		return claimWon, err
	}
	before := b.Len()
	if before == 0 {
		return claimWon, checkCommit(conn.Exec(ctx, "commit")) // without the cost of a batch
	}
	b.Queue("commit")
	results := conn.SendBatch(ctx, b)
	defer results.Close()
	for i := range before {
		switch _, err := results.Exec(); {
		case err == nil:
		case i >= claims:
			return claimWon, putFailed(err)
		case claiming && isRefusedByServer(err):
			return claimStateOf(err), settleFailed(err)
		default:
			return claimWon, settleFailed(err)
		}
	}
	return claimWon, checkCommit(results.Exec())
}

func isRefusedByServer(err error) bool {
	_, refused := pgerr.Refused(err)
	return refused
}
