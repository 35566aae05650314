package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// access implements [sqlschema.TxAccess], for the features that all SQL stores
// share.
type access struct{ *database }

var _ sqlschema.TxAccess[*sql.Tx] = access{}

func (a access) Read(ctx context.Context, do func(sqlschema.Querier) error) error {
	if err := a.ready(ctx, a.pool); err != nil {
		return err
	}
	return a.explain(do(sqltx.Querier{DB: a.pool}))
}

func (a access) Write(ctx context.Context, do func(sqlschema.Querier) error) error {
	if err := a.ready(ctx, a.pool); err != nil {
		return err
	}
	end, err := a.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	return a.explain(do(sqltx.Querier{DB: a.pool}))
}

func (a access) InTx(ctx context.Context, tx *sql.Tx, do func(sqlschema.Querier) error) error {
	if err := a.readyTx(ctx, tx); err != nil {
		return err
	}
	return a.explain(do(querier{tx, a.prepared}))
}

func (a access) Transact(ctx context.Context, begin string,
	do func(context.Context, sqlschema.Querier) error) error {

	if err := a.ready(ctx, a.pool); err != nil {
		return err
	}
	end, err := a.queue.wait(ctx)
	if err != nil {
		return err
	}
	defer end()
	limited, cancel := context.WithTimeout(ctx, sqltx.EndTime)
	defer cancel()
	tx, err := a.beginReadCommitted(limited)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	q := sqltx.Querier{DB: tx}
	if begin != "" {
		_, err = q.Exec(limited, begin)
	}
	if err == nil {
		err = do(limited, q)
	}
	if err != nil {
		return a.waited(ctx, limited, err)
	}
	return a.explain(tx.Commit())
}

// beginReadCommitted begins a short transaction of the store's own. At other
// isolation levels, MySQL and SQL Server would also lock the gaps between the
// rows that it reads, and so wait for the transactions of producers. SQLite has
// no levels.
func (d *database) beginReadCommitted(ctx context.Context) (*sql.Tx, error) {
	options := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	if d.dialect == sqlschema.SQLite {
		options = nil
	}
	tx, err := d.pool.BeginTx(ctx, options)
	return tx, d.explain(err)
}

// waited explains an error. It is a conflict if limited ended, but ctx did not:
// then another transaction was in the way for too long.
func (d *database) waited(ctx, limited context.Context, err error) error {
	if ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, once.ErrConflict) {
		return fmt.Errorf("%w: it waited %v for another transaction: %w", once.ErrConflict, sqltx.EndTime, err)
	}
	return d.explain(err)
}
