package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/jackc/pgx/v5"
)

// Extend makes the lease of a running claim end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	tag, err := s.pool.Exec(ctx, s.sql.extend, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt, d.Microseconds())
	if err == nil && tag.RowsAffected() != 1 {
		err = records.LeaseLost(fence)
	}
	return explain(err)
}

// Settle settles a claim.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	return s.settle(ctx, s.pool, set)
}

// SettleTx is Settle for each settlement, inside a transaction that the caller
// began and ends. After an error the caller has to roll back.
func (s *Store) SettleTx(ctx context.Context, tx pgx.Tx, ss []once.Settlement) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	for _, set := range ss {
		if err := handleOf(tx).runBeforeOwn(ctx, set.Key); err != nil {
			return err
		}
		if err := s.settle(ctx, tx, set); err != nil {
			return err
		}
	}
	return nil
}

// settle first tries the usual case, which costs half as much. It looks twice
// before it returns that the claim is lost: if it has waited for the same
// settlement from another connection, only the second snapshot shows that.
func (s *Store) settle(ctx context.Context, q querier, set once.Settlement) error {
	args, err := settleArgs(set)
	if err != nil {
		return err
	}
	if tag, err := q.Exec(ctx, s.sql.settleOwn, args...); err != nil || tag.RowsAffected() == 1 {
		return explain(refused(set, err))
	}
	for range 2 {
		settled := 0
		if err := q.QueryRow(ctx, s.sql.settle, args...).Scan(&settled); err != nil || settled > 0 {
			return explain(refused(set, err))
		}
	}
	return records.LeaseLost(set.Fence)
}

func settleArgs(set once.Settlement) ([]any, error) {
	var out once.Outcome
	var keepOutcome, keepKey *int64 // NULL: it does not expire
	first := set.KeepKey
	switch set.Status {
	case once.Done:
		out, keepOutcome, keepKey = set.Outcome, micros(set.KeepOutcome), micros(set.KeepKey)
		first = min(first, set.KeepOutcome)
	case once.Absent:
		keepKey = micros(set.KeepKey)
	case once.Unknown, once.Parked:
	default:
		return nil, fmt.Errorf("%w: a claim cannot be settled as %v", once.ErrInvalid, set.Status)
	}
	return []any{uuid(set.Key.UUID()), uuid(set.Owner), set.Attempt, int16(set.Status), out.Body, out.ContentType,
		flagsOf(out), int64(out.Sum), keepOutcome, keepKey, sqlschema.ValidText(set.Reason),
		sqlschema.Grain(first)}, nil
}

func micros(d time.Duration) *int64 {
	n := d.Microseconds()
	return &n
}
