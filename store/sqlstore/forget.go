package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
)

// Forget drops what is past its time, at most limit records, in one short transaction. Two that run at once do not
// wait for each other, except in SQLite.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.ready(ctx, s.db); err != nil {
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
	changed, err := s.forget(ctx, tx, int64(limit))
	if err != nil {
		return 0, err
	}
	return changed, s.fail(tx.Commit())
}

func (s *Store) beginForgetting(ctx context.Context) (*sql.Tx, error) {
	options := &sql.TxOptions{}
	if s.dialect == sqlschema.MySQL || s.dialect == sqlschema.SQLServer { // else the gaps between the rows are locked, too
		options.Isolation = sql.LevelReadCommitted
	}
	tx, err := s.db.BeginTx(ctx, options)
	return tx, s.fail(err)
}

// forget deletes those of the rows that are due whose keys are, and drops the outcomes of the others.
func (s *Store) forget(ctx context.Context, tx *sql.Tx, limit int64) (int, error) {
	deleted, err := s.exec(ctx, tx, s.sql.Forget, sqlschema.Params{"limit": limit})
	if err != nil || deleted == limit {
		return int(deleted), err
	}
	expired, err := s.exec(ctx, tx, s.sql.Expire, sqlschema.Params{"limit": limit - deleted})
	return int(deleted + expired), err
}
