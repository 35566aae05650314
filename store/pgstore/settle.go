package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// Extend lets the lease of a running claim end after d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	tag, err := s.pool.Exec(ctx, s.sql.extend, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt, d.Microseconds())
	if err == nil && tag.RowsAffected() != 1 {
		err = lost(fence)
	}
	return explain(err)
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	return s.settle(ctx, s.pool, set)
}

// SettleTx is Settle for each Settlement, inside a transaction that the caller began and ends.
// After an error the caller rolls back.
func (s *Store) SettleTx(ctx context.Context, tx pgx.Tx, ss []once.Settlement) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	for _, set := range ss {
		if err := s.settle(ctx, tx, set); err != nil {
			return err
		}
	}
	return nil
}

// settle tries the usual case first, which costs half. It looks twice before it says that it is lost: if it has waited
// for the same settlement, sent by somebody else, only the second snapshot shows that.
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
	return lost(set.Fence)
}

func settleArgs(set once.Settlement) ([]any, error) {
	var out once.Outcome
	var keepOutcome, keepKey *int64 // NULL: it does not end by itself
	first := set.KeepKey
	switch set.Status {
	case once.Done:
		out, keepOutcome, keepKey = set.Outcome, micros(set.KeepOutcome), micros(set.KeepKey)
		first = min(first, set.KeepOutcome)
	case once.Absent:
		keepKey = micros(set.KeepKey)
	case once.Unknown, once.Parked:
	default:
		return nil, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	return []any{uuid(set.Key.UUID()), uuid(set.Owner), set.Attempt, int16(set.Status), out.Body, out.ContentType,
		flagsOf(out), int64(out.Sum), keepOutcome, keepKey, clean(set.Reason),
		sqlschema.Grain(first)}, nil
}

func micros(d time.Duration) *int64 {
	n := d.Microseconds()
	return &n
}

// clean is a reason as PostgreSQL takes it. It is often an error's text, of which nobody knows what is in it.
func clean(reason string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
}

func lost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended", once.ErrLeaseLost, fence.Attempt,
		fence.Key.Operation, fence.Key.ID)
}
