package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Transact claims, runs body and settles in one transaction, which ends only
// here. Body may use the transaction for anything but Commit and Rollback. The
// package documentation says what each database adds to that.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*sql.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	end, err := s.queue.wait(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	t, err := s.beginClaims(ctx, rs)
	if err != nil {
		return nil, err
	}
	defer t.Rollback() // on every way out, a panic included; after the commit it does nothing
	if !t.holdsAny() {
		return t.records(), nil
	}
	s.bell.begun(t.Tx)
	defer s.bell.ended(t.Tx)
	defer func() {
		if t.phase == open {
			err = s.rollback(ctx, t, end, err)
		}
	}()
	sets, err := body(t.Tx, t.records())
	if err != nil {
		return nil, s.conflict(err)
	}
	if err := s.settleOwn(ctx, t, sets); err != nil {
		return nil, err
	}
	if err := s.commit(t.Transaction); err != nil {
		if errors.Is(err, once.ErrOutcomeUnknown) {
			t.phase = over
		}
		return nil, err
	}
	t.phase = over
	return t.records(), nil
}

// TransactAt moves a position and runs body in one transaction, which ends only
// here. Body is as free as that of Transact. TransactAt waits for another
// transaction on the row, for up to ten seconds or as long as the database
// allows, and then returns [once.ErrConflict].
func (s *Store) TransactAt(ctx context.Context, from, to store.Position, body func(*sql.Tx) error) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	t, err := sqltx.Begin(ctx, s.pool, s.dialect)
	if err != nil {
		return s.explain(err)
	}
	defer t.Rollback() // on every way out, a panic included; after the commit it does nothing
	moved, err := s.mark(ctx, t.Tx, from, to)
	if err != nil || !moved {
		return err
	}
	s.bell.begun(t.Tx)
	defer s.bell.ended(t.Tx)
	if err := body(t.Tx); err != nil {
		return s.conflict(err)
	}
	if err := s.unmark(ctx, t.Tx, to); err != nil {
		return s.settleFailed(err)
	}
	return s.commit(t)
}

// commit commits, and tells relays about the messages of the transaction.
func (s *Store) commit(t *sqltx.Transaction) error {
	err := t.Commit()
	s.bell.sent(t.Tx)
	if err != nil {
		return s.commitFailed(err)
	}
	return nil
}

// settleOwn is SettleTx for the settlements that body returned. Here, a
// settlement that changes nothing is an error: it shows that the transaction is
// no longer the one in which the claims were made.
func (s *Store) settleOwn(ctx context.Context, t *claims, sets []once.Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	for _, set := range sets {
		statement := s.sql.Settle
		if t.madeHere(set.Fence) {
			statement = s.sql.SettleOwn
		}
		changed, err := s.settle(ctx, t.Tx, statement, s.sql.GetLocked, set)
		if err == nil && !changed {
			err = records.LeaseLost(set.Fence)
		}
		if err != nil {
			return s.settleFailed(err)
		}
	}
	return nil
}

// settleFailed explains why the transaction of a body that returned no error is
// not committed.
func (d *database) settleFailed(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("once: the work has ended the transaction itself: leave Commit and Rollback to the store: %w", err)
	case d.dialect.Failure(err) == sqlschema.Aborted:
		return fmt.Errorf("once: a statement of the work failed and its error was ignored, so nothing can be "+
			"committed: return that error, or, in PostgreSQL, run the statement after a SAVEPOINT: %w", err)
	case errors.Is(err, once.ErrLeaseLost):
		return fmt.Errorf("rolled back; an error that was ignored may have ended the transaction: %w", err)
	}
	return err
}

// commitFailed explains an error of COMMIT. A few errors mean that the database
// refused it. After all others nobody knows whether it was applied.
func (d *database) commitFailed(err error) error {
	switch d.dialect.Failure(err) {
	case sqlschema.Constraint:
		return fmt.Errorf("once: the commit was refused: %w", err)
	case sqlschema.Conflict:
		return d.conflict(err)
	default:
		return fmt.Errorf("%w: the commit was sent: %w", once.ErrOutcomeUnknown, err)
	}
}
