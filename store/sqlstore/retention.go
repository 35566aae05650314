package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// Forgettable returns records that Forget would change now, with the outcomes that are still there.
func (s *Store) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	if limit <= 0 {
		return nil, false, fmt.Errorf("%w: Forgettable with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.ready(ctx, s.db); err != nil {
		return nil, false, err
	}
	p := sqlschema.Params{"limit": int64(limit)}
	later := int64(0)
	if putOff, some := s.sql.PutOff(); some {
		if later, err = s.exec(ctx, s.db, putOff, p); err != nil {
			return nil, false, err
		}
	}
	due, full, err := s.dueRecords(ctx, p)
	return due, full || len(due)+int(later) >= limit, err
}

// dueRecords ends a page early when its outcomes are large. What is left of it is not read: that may be a hundred times as
// much, for each page. So its connection is given up, where the server would send it.
func (s *Store) dueRecords(ctx context.Context, p sqlschema.Params) (due []once.Record, full bool, err error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	rows, err := s.db.QueryContext(ctx, s.sql.Due.Text, s.sql.Due.Args(p)...)
	if err != nil {
		return nil, false, s.fail(err)
	}
	defer rows.Close()
	for size := 0; rows.Next(); {
		r, err := readRow(rows)
		if err != nil {
			return nil, false, err
		}
		due = append(due, r.record())
		if size += len(r.Outcome.Body); size >= store.MaxForgettable {
			if s.dialect != sqlschema.SQLite { // which computes row by row
				hangUp()
			}
			return due, true, nil
		}
	}
	return due, false, s.fail(rows.Err())
}

// forgottenAtOnce is how many records a statement is about: SQLite takes no more than 1,000 OR, SQL Server no more than
// 2,100 parameters.
const forgottenAtOnce = 100

// ForgetRecords forgets what Forgettable returned, in one short transaction. It passes over rows that somebody is just
// changing.
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	if err := s.ready(ctx, s.db); err != nil || len(due) == 0 {
		return 0, err
	}
	end, err := s.write(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	tx, err := s.beginForgetting(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	for some := range slices.Chunk(due, forgottenAtOnce) {
		n, err := s.forgetOnly(ctx, tx, some)
		if err != nil {
			return 0, err
		}
		changed += n
	}
	return changed, s.fail(tx.Commit())
}

func (s *Store) forgetOnly(ctx context.Context, tx *sql.Tx, due []once.Record) (int, error) {
	p := sqlschema.Params{"limit": int64(len(due))}
	for i, rec := range due {
		p[fmt.Sprint("key", i)], p[fmt.Sprint("owner", i)] = s.names.UUID(rec.Key.UUID()), s.names.UUID(rec.Owner)
		p[fmt.Sprint("attempt", i)] = rec.Attempt
	}
	forget, expire := s.sql.ForgetOnly(len(due))
	deleted, err := s.exec(ctx, tx, forget, p)
	if err != nil || int(deleted) == len(due) {
		return int(deleted), err
	}
	expired, err := s.exec(ctx, tx, expire, p)
	return int(deleted + expired), err
}

// Reopen makes a key that is done free again.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	p := sqlschema.Params{"key": s.names.UUID(fence.Key.UUID()), "owner": s.names.UUID(fence.Owner), "attempt": fence.Attempt,
		"keepKey": keepKey.Microseconds(), "reason": clean(reason)}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	for range tries {
		changed, err := s.exec(ctx, s.db, s.sql.Reopen, p)
		if err != nil || changed == 1 {
			return err
		}
		found, err := s.get(ctx, s.db, s.sql.Get, fence.Key)
		switch {
		case err != nil:
			return err
		case found.heldBy(fence) && found.Status == once.Absent: // it is repeated
			return nil
		case !found.heldBy(fence) || found.Status != once.Done && found.Status != once.Expired:
			return lost(fence)
		}
	}
	return lost(fence)
}
