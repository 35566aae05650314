package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// endedByWork is the reason of records that are parked here.
const endedByWork = "the work has ended its transaction by a statement of its own, or passed over an error that ended it, " +
	"so what it wrote may be committed"

// failed ends a transaction that is not to be committed, and returns its error. If the work has ended it before, what the
// work wrote may be committed, and the next call would write it again: so the keys are parked.
//
// A rollback by the work shows before the end: the row of its claim is not there. A commit shows after it: the row is.
func (s *Store) failed(ctx context.Context, t *sqltx.Transaction, end func(), rs []once.ClaimRequest, claims []claimed, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	var own []int
	for i, c := range claims {
		if c.fresh && holds(rs[i], c.Record) {
			own = append(own, i)
		}
	}
	if len(own) == 0 {
		return err
	}
	first := holdOf(claims[own[0]].Record)
	ended := s.rolledBack(ctx, t, first)
	t.Rollback()
	end() // of its turn to write: a key is parked in another
	if !ended && !s.committed(ctx, first) || ended && s.endedByEngine(err) {
		return err
	}
	parked := fmt.Errorf("%w: %s", once.ErrParked, endedByWork)
	for _, i := range own {
		if cause := s.park(ctx, rs[i]); cause != nil {
			parked = fmt.Errorf("once: %s; the key could not be parked: %w", endedByWork, cause)
		}
	}
	if err == nil || errors.Is(err, once.ErrLeaseLost) || errors.Is(err, once.ErrConflict) { // which invite to another try
		return parked
	}
	return fmt.Errorf("%w: %w", parked, err)
}

// endedByEngine reports whether the work returned an error with which SQLite ends transactions by itself: a full disk, or
// the end of a context in the middle of a write. Nothing was written after it, or the work would have gone on.
func (s *Store) endedByEngine(err error) bool {
	return s.dialect == sqlschema.SQLite && (s.dialect.Failure(err) == sqlschema.Ended ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// rolledBack reports whether the claim is gone from its transaction, so that later statements have committed by themselves.
// MySQL's have not: see sqltx.Begin. The driver of SQL Server refuses them.
func (s *Store) rolledBack(ctx context.Context, t *sqltx.Transaction, fence once.Fence) bool {
	if s.dialect != sqlschema.PostgreSQL && s.dialect != sqlschema.SQLite {
		return false
	}
	found, err := s.get(ctx, t.Tx, s.sql.GetLocked, fence.Key)
	return err == nil && !found.heldBy(fence) // an error is that of a transaction that a failed statement has ended
}

// committed reports whether the claim of a transaction that was rolled back is there.
func (s *Store) committed(ctx context.Context, fence once.Fence) bool {
	found, err := s.get(ctx, s.db, s.sql.Get, fence.Key)
	return err == nil && found.heldBy(fence) && found.open(once.Unknown)
}

// park leaves the key to a person, if nobody else has it by now.
func (s *Store) park(ctx context.Context, r once.ClaimRequest) error {
	rec, err := s.Claim(ctx, r)
	if err != nil {
		return err
	}
	if !holds(r, rec) {
		return fmt.Errorf("another has it: it is %v", rec.Status)
	}
	return s.Settle(ctx, once.Settlement{Fence: holdOf(rec), Status: once.Parked, Reason: endedByWork})
}
