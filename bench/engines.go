package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

const accounts = 10_000

var (
	pay    = &once.Operation[struct{}]{Name: "pay"}
	charge = &once.Operation[struct{}]{Name: "charge", OnUnknown: once.Resend}
)

// openSQLite measures a transaction of one update, with every commit synced.
func openSQLite(ctx context.Context) (*engine, error) {
	dir, err := os.MkdirTemp("", "once-bench")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bench.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	for _, statement := range []string{
		`CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`,
		fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO account SELECT i, 0 FROM n`, accounts),
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	update := func(ctx context.Context, tx *sql.Tx) (struct{}, error) {
		_, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance + 1 WHERE id = ?`, rand.IntN(accounts))
		return struct{}{}, err
	}
	return &engine{name: "SQLite", close: func() { db.Close(); os.RemoveAll(dir) }, variants: []variant{
		{"bare transaction", func(ctx context.Context, _ string) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if _, err := update(ctx, tx); err != nil {
				return err
			}
			return tx.Commit()
		}},
		{"DoTx", func(ctx context.Context, id string) error {
			_, err := once.DoTx(ctx, store, pay.For(id), update)
			return err
		}},
		{"Do (two commits)", doNothing(store)},
		{"replay", replay(store)},
	}}, nil
}

// openPostgres measures the same on the server that was started for it, in a schema that is dropped afterwards.
func openPostgres(ctx context.Context) (*engine, error) {
	dsn := os.Getenv("ONCE_TEST_POSTGRES")
	if dsn == "" {
		fmt.Println("PostgreSQL is left out: ONCE_TEST_POSTGRES names none; \"make bench\" starts one")
		return nil, nil
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, err
	}
	var directory string
	if err := pool.QueryRow(ctx, "SHOW data_directory").Scan(&directory); err != nil {
		return nil, err
	}
	if directory != os.Getenv("ONCE_TEST_POSTGRES_DATA") {
		return nil, errors.New("ONCE_TEST_POSTGRES names a server that was not started for tests; nothing was done")
	}
	store := pgstore.New(pool, &pgstore.Options{Schema: "once_bench"})
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	for _, statement := range []string{
		`CREATE TABLE once_bench.account (id int PRIMARY KEY, balance bigint NOT NULL)`,
		fmt.Sprintf(`INSERT INTO once_bench.account SELECT i, 0 FROM generate_series(0, %d) i`, accounts),
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	update := func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		_, err := tx.Exec(ctx, `UPDATE once_bench.account SET balance = balance + 1 WHERE id = $1`, rand.IntN(accounts))
		return struct{}{}, err
	}
	drop := func() {
		_, _ = pool.Exec(ctx, `DROP SCHEMA once_bench CASCADE`)
		pool.Close()
	}
	return &engine{name: "PostgreSQL, pgstore", close: drop, variants: []variant{
		{"bare transaction", func(ctx context.Context, _ string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := update(ctx, tx)
				return err
			})
		}},
		{"DoTx", func(ctx context.Context, id string) error {
			_, err := once.DoTx(ctx, store, pay.For(id), update)
			return err
		}},
		{"Do (two commits)", doNothing(store)},
		{"replay", replay(store)},
	}}, nil
}

func doNothing(store once.Store) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		_, err := once.Do(ctx, store, charge.For(id), func(context.Context, once.Key) (struct{}, error) { return struct{}{}, nil })
		return err
	}
}

// replay meets a key that is done. There are many of them, so that workers rarely meet.
func replay(store once.Store) func(context.Context, string) error {
	run := doNothing(store)
	return func(ctx context.Context, _ string) error { return run(ctx, fmt.Sprint("replayed-", rand.IntN(1000))) }
}
