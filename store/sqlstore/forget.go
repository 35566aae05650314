package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Forget deletes keys and outcomes that are past their time, those of limit
// records at most, in one short transaction. Concurrent calls do not wait for
// each other, except in SQLite.
func (s *Store) Forget(ctx context.Context, limit int) (changed int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	err = s.inWriteTx(ctx, func(tx *sql.Tx) error {
		changed, err = s.forget(ctx, tx, int64(limit))
		return err
	})
	if err != nil {
		return 0, err
	}
	return changed, nil
}

// inWriteTx runs do in a short transaction when it is its turn to write.
func (s *Store) inWriteTx(ctx context.Context, do func(*sql.Tx) error) error {
	end, err := s.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	tx, err := s.beginReadCommitted(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return err
	}
	return s.explain(tx.Commit())
}

// forget deletes the due rows whose keys are past their time, and drops the
// outcomes of the other due rows.
func (s *Store) forget(ctx context.Context, tx *sql.Tx, limit int64) (int, error) {
	deleted, err := s.exec(ctx, tx, s.sql.Forget, sqlschema.Params{"limit": limit})
	if err != nil || deleted == limit {
		return int(deleted), err
	}
	expired, err := s.exec(ctx, tx, s.sql.Expire, sqlschema.Params{"limit": limit - deleted})
	return int(deleted + expired), err
}

// Forgettable returns records that Forget would change now, with the outcomes
// that are still there.
func (s *Store) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	err = access{s.database}.Read(ctx, func(q sqlschema.Querier) error {
		due, more, err = s.sql.Forgettable(ctx, q, limit)
		return err
	})
	return due, more, err
}

// forgottenAtOnce is the number of records in one statement. SQLite allows
// 1,000 ORs, and SQL Server 2,100 parameters.
const forgottenAtOnce = 100

// ForgetRecords forgets what Forgettable returned, in one short transaction. It
// skips rows that another transaction is changing.
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	if err := s.ready(ctx, s.pool); err != nil || len(due) == 0 {
		return 0, err
	}
	err = s.inWriteTx(ctx, func(tx *sql.Tx) error {
		for some := range slices.Chunk(due, forgottenAtOnce) {
			n, err := s.forgetOnly(ctx, tx, some)
			if err != nil {
				return err
			}
			changed += n
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return changed, nil
}

func (s *Store) forgetOnly(ctx context.Context, tx *sql.Tx, due []once.Record) (int, error) {
	p := sqlschema.Params{"limit": int64(len(due))}
	for i, rec := range due {
		p[fmt.Sprint("key", i)], p[fmt.Sprint("owner", i)] = s.names.UUID(rec.Key.UUID()), s.names.UUID(rec.Owner)
		p[fmt.Sprint("attempt", i)] = rec.Attempt
	}
	forget, expire := s.sql.ForgetOnly(len(due))
	q := sqltx.Querier{DB: tx} // which prepares nothing: the texts differ
	deleted, err := q.Exec(ctx, forget.Text, forget.Args(p)...)
	if err != nil || int(deleted) == len(due) {
		return int(deleted), s.explain(err)
	}
	expired, err := q.Exec(ctx, expire.Text, expire.Args(p)...)
	return int(deleted + expired), s.explain(err)
}
