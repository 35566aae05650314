package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// speculation is a Transact whose handler runs before the claim is made. If its outcome is foreseen, the claim writes the
// record as it is when all is done, and COMMIT goes by itself. Else the claim is the lock of the key and a look at its row, and the
// record is written together with COMMIT. Either way it is written once, and the unique index has the last word.
type speculation struct {
	*opening
	store    *Store
	r        once.ClaimRequest
	foreseen bool
	begun    time.Time
}

func isSpeculative(rs []once.ClaimRequest) bool {
	return len(rs) == 1 && rs[0].Speculative && rs[0].Expected != nil && rs[0].Attempt == 0
}

func (s *Store) newSpeculation(ctx context.Context, conn *pgx.Conn, r once.ClaimRequest) *speculation {
	e := &speculation{store: s, r: r, foreseen: !equal(r.Expected.Outcome, once.Outcome{}), begun: time.Now(),
		opening: &opening{ctx: ctx, conn: conn, begin: s.begin}}
	if s.partition != nil {
		e.lock = &pgx.QueuedQuery{SQL: s.sql.lock, Arguments: []any{s.lock(r.Key.UUID())}}
	}
	if e.foreseen {
		e.claim, e.args = s.sql.open, e.record(r.Expected.Outcome)
	} else {
		key := r.Key.UUID()
		e.claim, e.args = s.sql.look, []any{uuid(key), s.lock(key)}
	}
	return e
}

// speculate calls body at once, or after a look if that was in vain too often lately. It is not sure if the claim was
// lost, or nothing is known of it: then body counts for nothing, and what was begun is still to be rolled back.
func (s *Store) speculate(ctx context.Context, conn *pgx.Conn, tx *handle, r once.ClaimRequest,
	body func(pgx.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, sure bool, err error) {

	if s.losses.high() {
		switch rec, err := s.record(ctx, conn, r.Key); {
		case err != nil:
			return nil, true, err
		case rec.Status != once.Absent:
			s.losses.count(true)
			return []once.Record{rec}, true, nil
		}
	}
	rec := once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease, Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause}
	e := s.newSpeculation(ctx, conn, r)
	tx.opening, tx.own = e.opening, func(k once.Key) bool { return k == r.Key }
	sets, err := body(tx, []once.Record{rec})
	tx.opening, tx.own = nil, nil
	switch {
	case e.sent && !e.won && conn.IsClosed():
		return nil, true, e.cutOff(err)
	case e.sent && !e.won:
		return e.met(ctx)
	case !e.sent && err != nil:
		return nil, false, nil
	case err != nil && !e.foreseen: // what it met may be the rows of one whose commit the look was too old to see
		if recs, sure, missed := e.met(ctx); sure && missed == nil {
			return recs, true, nil
		}
		return nil, true, conflict(err)
	case err != nil:
		return nil, true, conflict(err)
	}
	if err := e.check(sets, rec); err != nil {
		return nil, true, err
	}
	switch won, err := e.commit(ctx, tx, sets[0].Outcome); {
	case !won:
		return e.met(ctx)
	case err != nil:
		return nil, true, err
	}
	s.losses.count(false)
	return []once.Record{rec}, true, nil
}

// met returns what stands in the way of a claim that was lost. It is not sure if that is gone, or was something else.
func (e *speculation) met(ctx context.Context) (recs []once.Record, sure bool, err error) {
	rollback(ctx, e.conn)
	rec, err := e.store.record(ctx, e.conn, e.r.Key)
	switch {
	case err != nil:
		return nil, true, err
	case rec.Status == once.Absent && e.busy:
		rec = once.Record{Key: e.r.Key, Status: once.Running}
	case rec.Status == once.Absent:
		return nil, false, nil
	}
	e.store.losses.count(true)
	return []once.Record{rec}, true, nil
}

// cutOff is the error of a transaction whose connection was lost before it was known that the claim is made: nothing was
// committed, and another connection may do better. Only where the handler's own deadline has ended it, there is no point.
func (e *speculation) cutOff(body error) error {
	if body != nil && (outOfTime(body) || outOfTime(e.cause)) {
		return body
	}
	return fmt.Errorf("%w: the connection was lost before the claim was made: %w", once.ErrConflict, explain(e.cause))
}

func outOfTime(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// check holds body to what its request said.
func (e *speculation) check(sets []once.Settlement, rec once.Record) error {
	if len(sets) == 1 && sets[0].Status == once.Done &&
		sets[0].Fence == (once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: 1}) &&
		sets[0].KeepOutcome == e.r.Expected.KeepOutcome && sets[0].KeepKey == e.r.Expected.KeepKey && sets[0].Reason == e.r.Expected.Reason {
		return nil
	}
	return fmt.Errorf("%w: the body of a Speculative request did not settle as Expected says", once.ErrInvalid)
}

// commit ends the transaction, in one round trip. Where nothing was sent so far, that is the whole of it. It reports
// whether the claim was won; an error is about what came behind that.
func (e *speculation) commit(ctx context.Context, tx *handle, out once.Outcome) (won bool, err error) {
	b := new(pgx.Batch)
	if !e.sent {
		b.Queue(e.begin)
	} else if err := checkOpen(e.conn); err != nil {
		return true, err
	}
	claiming := !e.sent || !e.foreseen
	switch {
	case claiming:
		if e.lock != nil {
			b.Queue(e.lock.SQL, e.lock.Arguments...)
		}
		b.Queue(e.store.sql.open, e.record(out)...)
	case e.odd || e.slow() || !equal(out, e.r.Expected.Outcome):
		b.Queue(e.store.sql.mustAmend, e.amendment(out)...)
	}
	defer limit(e.conn).end()
	ctx = context.WithoutCancel(ctx)
	claims := b.Len()
	if err := tx.queuePuts(b); err != nil {
		return true, err
	}
	before := b.Len()
	if before == 0 {
		return true, committed(e.conn.Exec(ctx, "commit")) // without the costs of a batch
	}
	b.Queue("commit")
	replies := e.conn.SendBatch(ctx, b)
	defer replies.Close()
	for i := range before {
		if _, err := replies.Exec(); err != nil {
			if i >= claims {
				return true, putFailed(err)
			}
			pe, refused := serverError(err)
			e.busy = refused && saysWhy(pe, keyInFlight)
			return !refused || !claiming, settleFailed(err)
		}
	}
	return true, committed(replies.Exec())
}

// slow work makes a difference to the times of its record.
func (e *speculation) slow() bool {
	return time.Since(e.begun) > min(e.r.Expected.KeepOutcome, e.r.Expected.KeepKey)/sqlschema.Grains
}

func equal(a, b once.Outcome) bool {
	return a.Sum == b.Sum && a.Rejected == b.Rejected && a.Omitted == b.Omitted && a.ContentType == b.ContentType && bytes.Equal(a.Body, b.Body)
}

// record are the arguments of openSQL.
func (e *speculation) record(out once.Outcome) []any {
	r := e.r
	key, keep, keepKey := r.Key.UUID(), r.Expected.KeepOutcome, r.Expected.KeepKey
	return []any{uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Fingerprint, e.store.lock(key),
		out.Body, out.ContentType, flagsOf(out), int64(out.Sum), keep.Microseconds(), keepKey.Microseconds(),
		min(keep, keepKey).Microseconds(), sqlschema.Grain(min(keep, keepKey)), clean(r.Expected.Reason), causeOf(r)}
}

// amendment are the arguments of mustAmendSQL.
func (e *speculation) amendment(out once.Outcome) []any {
	return []any{uuid(e.r.Key.UUID()), uuid(e.r.Owner), out.Body, out.ContentType, flagsOf(out), int64(out.Sum),
		e.r.Expected.KeepOutcome.Microseconds(), e.r.Expected.KeepKey.Microseconds()}
}
