package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Extend lets the lease of a running claim end after d from now.
func (s *Store) Extend(ctx context.Context, h once.Hold, d time.Duration) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	p := sqlschema.Params{"key": s.names.UUID(h.Key.UUID()), "owner": s.names.UUID(h.Owner), "attempt": h.Attempt, "lease": d.Microseconds()}
	changed, err := s.exec(ctx, s.db, s.sql.Extend, p)
	if err != nil || changed == 1 {
		return err
	}
	// MySQL counts no row that another Extend has brought to the same microsecond.
	found, err := s.get(ctx, s.db, s.sql.Get, h.Key)
	if err == nil && !(found.Status == once.Running && found.heldBy(h)) {
		err = lost(h)
	}
	return err
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	_, err := s.settle(ctx, s.db, s.sql.Get, set)
	return err
}

// SettleTx is Settle for each Settlement, inside a transaction that the caller began and ends.
// After an error the caller rolls back.
func (s *Store) SettleTx(ctx context.Context, tx *sql.Tx, ss []once.Settlement) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	for _, set := range ss {
		if _, err := s.settle(ctx, tx, s.sql.GetLocked, set); err != nil {
			return err
		}
	}
	return nil
}

// settle reports whether it changed the record, which it does not if the settlement was applied before.
func (s *Store) settle(ctx context.Context, q sqltx.Querier, get sqlschema.Statement, set once.Settlement) (changed bool, err error) {
	p, err := s.settleParams(set)
	if err != nil {
		return false, err
	}
	n, err := s.exec(ctx, q, s.sql.Settle, p)
	if err != nil || n == 1 {
		return n == 1, err
	}
	found, err := s.get(ctx, q, get, set.Key)
	if err == nil && !(found.heldBy(set.Hold) && found.shows(set)) {
		err = lost(set.Hold)
	}
	return false, err
}

// shows reports whether the row is what set makes of one.
func (r row) shows(set once.Settlement) bool {
	switch set.Status {
	case once.Done:
		want := set.Outcome
		want.Body = nil
		same := r.outcome.ContentType == want.ContentType && r.outcome.Sum == want.Sum &&
			r.outcome.Rejected == want.Rejected && r.outcome.Omitted == want.Omitted
		body := string(r.Outcome.Body) == string(set.Outcome.Body)
		return same && (r.Status == once.Expired || r.Status == once.Done && body)
	default:
		return r.Status == set.Status
	}
}

const longestType = 255

func (s *Store) settleParams(set once.Settlement) (sqlschema.Params, error) {
	if len(set.Outcome.ContentType) > longestType {
		return nil, fmt.Errorf("%w: the content type has %d bytes, the limit is %d", once.ErrInvalid,
			len(set.Outcome.ContentType), longestType)
	}
	p := sqlschema.Params{"key": s.names.UUID(set.Key.UUID()), "owner": s.names.UUID(set.Owner), "attempt": set.Attempt,
		"status": int64(set.Status), "type": "", "flags": int64(0), "sum": int64(0), "reason": clean(set.Reason)}
	switch set.Status {
	case once.Done:
		p["body"], p["type"] = bytesOf(set.Outcome.Body), set.Outcome.ContentType
		p["flags"], p["sum"] = flagsOf(set.Outcome), int64(set.Outcome.Sum)
		p["keepOutcome"], p["keepKey"] = set.KeepOutcome.Microseconds(), set.KeepKey.Microseconds()
		p["due"], p["grain"] = min(set.KeepOutcome, set.KeepKey).Microseconds(), sqlschema.Grain(min(set.KeepOutcome, set.KeepKey))
	case once.Absent:
		p["keepKey"], p["due"], p["grain"] = set.KeepKey.Microseconds(), set.KeepKey.Microseconds(), sqlschema.Grain(set.KeepKey)
	case once.Unknown, once.Parked:
	default:
		return nil, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	return p, nil
}

func lost(h once.Hold) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended", once.ErrLeaseLost, h.Attempt,
		h.Key.Operation, h.Key.ID)
}
