package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Extend lets the lease of a running claim end after d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	p := sqlschema.Params{"key": s.names.UUID(fence.Key.UUID()), "owner": s.names.UUID(fence.Owner), "attempt": fence.Attempt, "lease": d.Microseconds()}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	for range tries {
		changed, err := s.exec(ctx, s.db, s.sql.Extend, p)
		if err != nil || changed == 1 {
			return err
		}
		found, err := s.get(ctx, s.db, s.sql.Get, fence.Key)
		if err != nil {
			return err
		}
		if found.Status != once.Running || !found.heldBy(fence) {
			break
		}
	}
	return lost(fence)
}

// tries bounds how often a statement is repeated that has changed no row, although the row that was read after it is one
// that it changes. What was read proves nothing: the row may have become so in between. And MySQL counts no row that
// another statement has given the same values, down to the microsecond.
const tries = 4

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = s.settle(ctx, s.db, s.sql.Settle, s.sql.Get, set)
	if err != nil && !errors.Is(err, once.ErrOutcomeRefused) && s.overPacket(ctx, set) {
		return refused(set, err)
	}
	return err
}

// overPacket reports whether an outcome is larger than what MySQL accepts in a statement. Of one that is much larger it
// closes the connection while that is being sent, so that the error tells nothing.
func (s *Store) overPacket(ctx context.Context, set once.Settlement) bool {
	if s.dialect != sqlschema.MySQL || len(set.Outcome.Body) < smallPacket {
		return false
	}
	var limit int
	err := s.db.QueryRowContext(ctx, `SELECT @@max_allowed_packet`).Scan(&limit)
	return err == nil && len(set.Outcome.Body) >= limit
}

const smallPacket = 1 << 10 // the least that max_allowed_packet can be

func refused(set once.Settlement, err error) error {
	return fmt.Errorf("%w: its body has %d bytes: %w", once.ErrOutcomeRefused, len(set.Outcome.Body), err)
}

// SettleTx is Settle for each Settlement, inside a transaction that the caller began and ends.
// After an error the caller rolls back.
func (s *Store) SettleTx(ctx context.Context, tx *sql.Tx, ss []once.Settlement) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	for _, set := range ss {
		if _, err := s.settle(ctx, tx, s.sql.Settle, s.sql.GetLocked, set); err != nil {
			return err
		}
	}
	return nil
}

// settle reports whether it changed the record, which it does not if the settlement was applied before.
func (s *Store) settle(ctx context.Context, q sqltx.Querier, how, get sqlschema.Statement, set once.Settlement) (changed bool, err error) {
	p, err := s.settleParams(set)
	if err != nil {
		return false, err
	}
	for range tries {
		n, err := s.exec(ctx, q, how, p)
		if kind := s.dialect.Failure(err); set.Status == once.Done && (kind == sqlschema.Refused || kind == sqlschema.Constraint) {
			return false, refused(set, err)
		}
		if err != nil || n == 1 {
			return n == 1, err
		}
		found, err := s.get(ctx, q, get, set.Key)
		switch {
		case err != nil:
			return false, err
		case found.heldBy(set.Fence) && found.ended(set):
			return false, nil
		case !found.heldBy(set.Fence) || !found.open(set.Status):
			return false, lost(set.Fence)
		}
	}
	return false, lost(set.Fence)
}

// ended reports whether the row is what set has made of it, and what no other statement makes.
func (r row) ended(set once.Settlement) bool {
	switch set.Status {
	case once.Done:
		want := set.Outcome
		want.Body = nil
		same := r.outcome.ContentType == want.ContentType && r.outcome.Sum == want.Sum &&
			r.outcome.Rejected == want.Rejected && r.outcome.Omitted == want.Omitted
		body := string(r.Outcome.Body) == string(set.Outcome.Body)
		return same && (r.Status == once.Expired || r.Status == once.Done && body)
	case once.Absent:
		return r.Status == once.Absent
	}
	return false // a running row reads as Unknown, too, and a parked one is parked again
}

// open reports whether the row can still be settled in this way.
func (r row) open(to once.Status) bool {
	return r.Status == once.Running || r.Status == once.Unknown || r.Status == once.Parked && to != once.Unknown
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

func lost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended", once.ErrLeaseLost, fence.Attempt,
		fence.Key.Operation, fence.Key.ID)
}
