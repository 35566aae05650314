package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// endedByWork is the reason of the records that rollback parks.
const endedByWork = "the work has ended its transaction by a statement of its own, or ignored an error that ended it, " +
	"so its writes may be committed"

// rollback rolls back a transaction of Transact and returns its error. If the
// work had already ended the transaction by itself, the writes of the work may
// be committed, and the next call would write them again. So rollback then
// parks the keys.
//
// A rollback by the work shows before this one: the claim is missing in the
// transaction. A commit by the work shows after this one: the claim is there.
func (s *Store) rollback(ctx context.Context, t *claims, end func(), err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	var own []once.ClaimRequest
	var first once.Record
	for i, c := range t.made {
		if c.fresh && holds(t.requests[i], c.Record) {
			if len(own) == 0 {
				first = c.Record
			}
			own = append(own, t.requests[i])
		}
	}
	if len(own) == 0 {
		return err
	}
	rolledBack := s.rolledBack(ctx, t.Transaction, first)
	t.Rollback()
	end() // of the turn to write: parking takes another one
	if rolledBack && s.endedByEngine(err) || !rolledBack && !s.committed(ctx, first) {
		return err
	}
	return s.parkAll(ctx, own, err)
}

// parkAll parks the keys of requests, and adds that to the error of the work.
func (s *Store) parkAll(ctx context.Context, own []once.ClaimRequest, err error) error {
	parked := fmt.Errorf("%w: %s", once.ErrParked, endedByWork)
	for _, r := range own {
		if cause := s.park(ctx, r); cause != nil {
			parked = fmt.Errorf("once: %s; the key could not be parked: %w", endedByWork, cause)
		}
	}
	if err == nil || errors.Is(err, once.ErrLeaseLost) || errors.Is(err, once.ErrConflict) { // which ask for another try
		return parked
	}
	return fmt.Errorf("%w: %w", parked, err)
}

// endedByEngine reports whether SQLite itself has ended the transaction, with
// the error that the work returned: a full disk, for example, or a context that
// ended during a write. The work returned that error, so it wrote nothing after
// it.
func (s *Store) endedByEngine(err error) bool {
	return s.dialect == sqlschema.SQLite && (s.dialect.Failure(err) == sqlschema.Ended ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// rolledBack reports whether the claim is missing in its transaction, so that
// later statements were committed one by one. That cannot happen in MySQL, see
// [sqltx.Begin], nor in SQL Server, whose driver refuses these statements.
func (s *Store) rolledBack(ctx context.Context, t *sqltx.Transaction, made once.Record) bool {
	if s.dialect != sqlschema.PostgreSQL && s.dialect != sqlschema.SQLite {
		return false
	}
	// At REPEATABLE READ, PostgreSQL still shows an old row of the key that was
	// forgotten meanwhile, beside the new one. An error means that a failed
	// statement has aborted the transaction.
	found, err := s.rows(ctx, t.Tx, s.sql.GetLocked, sqlschema.Params{"key": s.names.UUID(made.Key.UUID())})
	return err == nil && !slices.ContainsFunc(found, func(r records.Row) bool { return isClaim(r, made) })
}

// committed reports whether the claim is there after its transaction was rolled
// back.
func (s *Store) committed(ctx context.Context, made once.Record) bool {
	found, err := s.get(ctx, s.pool, s.sql.Get, made.Key)
	return err == nil && isClaim(found, made) && found.CanEnd(once.Unknown)
}

// isClaim reports whether a row is still that of a claim. The fence does not tell:
// after the transaction was rolled back, a request with the same token that was late
// on its way may have claimed the key again.
func isClaim(r records.Row, made once.Record) bool {
	if r.Attempt > 1 && r.Status == once.Running && !r.Updated.Equal(made.Updated) {
		return false // a key that was not new keeps its Created
	}
	return r.HeldBy(fenceOf(made)) && r.Created.Equal(made.Created)
}

// park claims a key and parks it for a person to decide. It fails if another
// claim has the key.
func (s *Store) park(ctx context.Context, r once.ClaimRequest) error {
	rec, err := s.Claim(ctx, r)
	if err != nil {
		return err
	}
	if !holds(r, rec) {
		return fmt.Errorf("another claim has it: it is %v", rec.Status)
	}
	return s.Settle(ctx, once.Settlement{Fence: fenceOf(rec), Status: once.Parked, Reason: endedByWork})
}
