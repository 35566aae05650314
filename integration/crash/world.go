// Package crash kills processes that work through once, and counts what they have done.
//
// A child process works on a small set of keys, over and over, together with other children. Its parent kills it with
// SIGKILL at a moment that chance decides, and starts another, until it has done so often enough. Then every key is
// worked once more without a kill, and every effect must be there exactly once. SIGKILL shows what the death of a process
// does; it shows nothing of the loss of power.
package crash

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	_ "github.com/go-sql-driver/mysql" // the drivers of the engines
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// world is one engine with the effects that are counted on it. Table inside is written in the transaction of DoTx.
// Table outside stands for another system: it is written by statements of its own, it refuses no duplicate, and
// it can be asked.
type world interface {
	setUp(ctx context.Context) error
	work(ctx context.Context, id string) error
	count(ctx context.Context, table, id string) (int, error)
	close()
}

const lease = 400 * time.Millisecond

var (
	inside  = &once.Operation[string]{Name: "inside"}
	tables  = []string{"inside", "outside"}
	engines = map[string]func(dsn string) (world, error){
		"sqlite":           func(dsn string) (world, error) { return openSQL("sqlite", dsn, sqlstore.SQLite) },
		"postgres":         func(dsn string) (world, error) { return openSQL("pgx", dsn, sqlstore.PostgreSQL) },
		"mariadb":          func(dsn string) (world, error) { return openSQL("mysql", dsn, sqlstore.MySQL) },
		"postgres-pgstore": openPG,
	}
)

// effects are the statements of an engine, by name of the table.
type effects struct {
	insert, count string
}

func sqlEffects(dialect sqlstore.Dialect) effects {
	if dialect == sqlstore.PostgreSQL {
		return effects{"INSERT INTO effect_%s (id) VALUES ($1)", "SELECT count(*) FROM effect_%s WHERE id = $1"}
	}
	return effects{"INSERT INTO effect_%s (id) VALUES (?)", "SELECT count(*) FROM effect_%s WHERE id = ?"}
}

const createEffects = "CREATE TABLE effect_%s (id VARCHAR(100) NOT NULL)"

// both does the work of an id: first outside of the database, then in it.
func both[Tx any](ctx context.Context, s once.TxStore[Tx], id string, insertOutside func(context.Context) error,
	countOutside func(context.Context) (int, error), insertInside func(context.Context, Tx) error) error {
	outside := &once.Operation[string]{
		Name:   "outside",
		Policy: once.Policy{Lease: lease},
		Lookup: func(ctx context.Context, key once.Key) (string, bool, error) {
			n, err := countOutside(ctx)
			return id, n > 0, err
		},
		SettleTime: lease / 2, // a statement that was sent right before the kill may still arrive
	}
	_, err := once.Do(ctx, s, outside.For(id), func(ctx context.Context, key once.Key) (string, error) {
		return id, insertOutside(ctx)
	})
	if err != nil {
		return err
	}
	_, err = once.DoTx(ctx, s, inside.For(id), func(ctx context.Context, tx Tx) (string, error) {
		return id, insertInside(ctx, tx)
	})
	return err
}

type sqlWorld struct {
	db    *sql.DB
	store *sqlstore.Store
	effects
}

func openSQL(driver, dsn string, dialect sqlstore.Dialect) (world, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	return &sqlWorld{db, sqlstore.New(db, dialect, nil), sqlEffects(dialect)}, nil
}

func (w *sqlWorld) close() { _ = w.db.Close() }

func (w *sqlWorld) setUp(ctx context.Context) error {
	for _, table := range tables {
		if _, err := w.db.ExecContext(ctx, fmt.Sprintf(createEffects, table)); err != nil {
			return err
		}
	}
	return w.store.Migrate(ctx)
}

func (w *sqlWorld) count(ctx context.Context, table, id string) (n int, err error) {
	err = w.db.QueryRowContext(ctx, fmt.Sprintf(w.effects.count, table), id).Scan(&n)
	return n, err
}

func (w *sqlWorld) work(ctx context.Context, id string) error {
	return both(ctx, w.store, id,
		func(ctx context.Context) error {
			_, err := w.db.ExecContext(ctx, fmt.Sprintf(w.insert, "outside"), id)
			return err
		},
		func(ctx context.Context) (int, error) { return w.count(ctx, "outside", id) },
		func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf(w.insert, "inside"), id)
			return err
		})
}

type pgWorld struct {
	pool  *pgxpool.Pool
	store *pgstore.Store
	effects
}

func openPG(dsn string) (world, error) {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return nil, err
	}
	return &pgWorld{pool, pgstore.New(pool, nil), sqlEffects(sqlstore.PostgreSQL)}, nil
}

func (w *pgWorld) close() { w.pool.Close() }

func (w *pgWorld) setUp(ctx context.Context) error {
	for _, table := range tables {
		if _, err := w.pool.Exec(ctx, fmt.Sprintf(createEffects, table)); err != nil {
			return err
		}
	}
	return w.store.Migrate(ctx)
}

func (w *pgWorld) count(ctx context.Context, table, id string) (n int, err error) {
	err = w.pool.QueryRow(ctx, fmt.Sprintf(w.effects.count, table), id).Scan(&n)
	return n, err
}

func (w *pgWorld) work(ctx context.Context, id string) error {
	return both(ctx, w.store, id,
		func(ctx context.Context) error {
			_, err := w.pool.Exec(ctx, fmt.Sprintf(w.insert, "outside"), id)
			return err
		},
		func(ctx context.Context) (int, error) { return w.count(ctx, "outside", id) },
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, fmt.Sprintf(w.insert, "inside"), id)
			return err
		})
}

// finish works an id until it is done: an outcome that is unknown yet is asked about again.
func finish(ctx context.Context, w world, id string) error {
	for {
		err := w.work(ctx, id)
		after, again := once.MayRetry(err)
		if err == nil || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(min(after+time.Millisecond, lease)):
		}
	}
}
