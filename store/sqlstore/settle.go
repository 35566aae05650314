package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Extend makes the lease of a running claim end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	p := s.fenceParams(fence)
	p["lease"] = d.Microseconds()
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	for range tries {
		changed, err := s.exec(ctx, s.pool, s.sql.Extend, p)
		if err != nil || changed == 1 {
			return err
		}
		found, err := s.get(ctx, s.pool, s.sql.Get, fence.Key)
		if err != nil {
			return err
		}
		if found.Status != once.Running || !found.HeldBy(fence) {
			break
		}
	}
	return records.LeaseLost(fence)
}

// tries bounds how often a statement is repeated that changed no row, although
// the row as read after it is one that it changes. The row may have become so
// in between. And MySQL does not count a row that already has the same values,
// times in microseconds included.
const tries = 4

// fenceParams are the parameters that name an attempt.
func (s *Store) fenceParams(fence once.Fence) sqlschema.Params {
	return sqlschema.Params{"key": s.names.UUID(fence.Key.UUID()), "owner": s.names.UUID(fence.Owner), "attempt": fence.Attempt}
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = s.settle(ctx, s.pool, s.sql.Settle, s.sql.Get, set)
	if err != nil && !errors.Is(err, once.ErrOutcomeRefused) && s.overPacket(ctx, set) {
		return refused(set, err)
	}
	return err
}

// overPacket reports whether an outcome is larger than MySQL accepts in a
// statement. While a much larger one is being sent, MySQL closes the
// connection, so the error of the statement does not say why.
func (s *Store) overPacket(ctx context.Context, set once.Settlement) bool {
	if s.dialect != sqlschema.MySQL || len(set.Outcome.Body) < smallPacket {
		return false
	}
	var limit int
	err := s.pool.QueryRowContext(ctx, `SELECT @@max_allowed_packet`).Scan(&limit)
	return err == nil && len(set.Outcome.Body) >= limit
}

const smallPacket = 1 << 10 // the least that max_allowed_packet can be

func refused(set once.Settlement, err error) error {
	return fmt.Errorf("%w: its body has %d bytes: %w", once.ErrOutcomeRefused, len(set.Outcome.Body), err)
}

// SettleTx is Settle for each settlement, inside a transaction that the caller
// began and ends. After an error the caller rolls back.
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

// settle reports whether it changed the record. It does not if the settlement
// was applied before.
func (s *Store) settle(ctx context.Context, db sqltx.DB, statement, get sqlschema.Statement,
	set once.Settlement) (changed bool, err error) {

	p, err := s.settleParams(set)
	if err != nil {
		return false, err
	}
	for range tries {
		n, err := s.exec(ctx, db, statement, p)
		if kind := s.dialect.Failure(err); set.Status == once.Done && (kind == sqlschema.Refused || kind == sqlschema.Constraint) {
			return false, refused(set, err)
		}
		if err != nil || n == 1 {
			return n == 1, err
		}
		found, err := s.get(ctx, db, get, set.Key)
		switch {
		case err != nil:
			return false, err
		case found.HeldBy(set.Fence) && found.EndedBy(set):
			return false, nil
		case !found.HeldBy(set.Fence) || !found.CanEnd(set.Status):
			return false, records.LeaseLost(set.Fence)
		}
	}
	return false, records.LeaseLost(set.Fence)
}

const longestType = 255

func (s *Store) settleParams(set once.Settlement) (sqlschema.Params, error) {
	if len(set.Outcome.ContentType) > longestType {
		return nil, fmt.Errorf("%w: the content type has %d bytes, the limit is %d", once.ErrInvalid,
			len(set.Outcome.ContentType), longestType)
	}
	p := s.fenceParams(set.Fence)
	p["status"], p["reason"] = int64(set.Status), sqlschema.ValidText(set.Reason)
	p["type"], p["flags"], p["sum"] = "", int64(0), int64(0)
	switch set.Status {
	case once.Done:
		p["body"], p["type"] = bytesOf(set.Outcome.Body), set.Outcome.ContentType
		p["flags"], p["sum"] = records.Flags(set.Outcome), int64(set.Outcome.Sum)
		p["keepOutcome"], p["keepKey"] = set.KeepOutcome.Microseconds(), set.KeepKey.Microseconds()
		first := min(set.KeepOutcome, set.KeepKey)
		p["due"], p["grain"] = first.Microseconds(), sqlschema.Grain(first)
	case once.Absent:
		p["keepKey"], p["due"], p["grain"] = set.KeepKey.Microseconds(), set.KeepKey.Microseconds(), sqlschema.Grain(set.KeepKey)
	case once.Unknown, once.Parked:
	default:
		return nil, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	return p, nil
}

// Reopen releases a key that is done.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	p := s.fenceParams(fence)
	p["keepKey"], p["reason"] = keepKey.Microseconds(), sqlschema.ValidText(reason)
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	for range tries {
		changed, err := s.exec(ctx, s.pool, s.sql.Reopen, p)
		if err != nil || changed == 1 {
			return err
		}
		found, err := s.get(ctx, s.pool, s.sql.Get, fence.Key)
		switch {
		case err != nil:
			return err
		case found.HeldBy(fence) && found.Status == once.Absent: // by an earlier call
			return nil
		case !found.HeldBy(fence) || found.Status != once.Done && found.Status != once.Expired:
			return records.LeaseLost(fence)
		}
	}
	return records.LeaseLost(fence)
}
