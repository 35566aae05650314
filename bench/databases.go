package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	_ "github.com/go-sql-driver/mysql" // the driver for MariaDB
	_ "modernc.org/sqlite"             // the driver for SQLite

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
)

const fewAccounts = 10_000

// databaseStages hold the contest of guarded transactions over database/sql.
func databaseStages() []stage {
	return []stage{
		{name: "guarded transaction, SQLite", loads: workers(1, 8), open: openSQLite},
		{name: "guarded transaction, MariaDB", loads: workers(1, 8), open: openMariaDB},
	}
}

// openSQLite opens a database that syncs at every commit.
func openSQLite(ctx context.Context, _ *bench) (*arena, error) {
	dir, err := os.MkdirTemp("", "once-bench")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bench.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	closeAll := func() { _, _ = db.Close(), os.RemoveAll(dir) }
	return openDatabase(ctx, db, sqlstore.SQLite, closeAll, `INSERT INTO done (id) VALUES (?) ON CONFLICT DO NOTHING`,
		`CREATE TABLE done (id TEXT PRIMARY KEY) WITHOUT ROWID`,
		`CREATE TABLE account (id INTEGER PRIMARY KEY, bal INTEGER NOT NULL)`,
		fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO account SELECT i, 0 FROM n`, fewAccounts))
}

func openMariaDB(ctx context.Context, _ *bench) (*arena, error) {
	dsn := os.Getenv(testenv.MariaDBVar)
	if dsn == "" {
		return nil, errNoServer
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(connections)
	var directory string
	err = db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&directory)
	if err == nil {
		err = checkDirectory(testenv.MariaDBVar, directory, testenv.MariaDBDataVar)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	const tables = "account, done, once_record, once_schema"
	closeAll := func() {
		_, _ = db.ExecContext(context.WithoutCancel(ctx), "DROP TABLE IF EXISTS "+tables)
		_ = db.Close()
	}
	return openDatabase(ctx, db, sqlstore.MySQL, closeAll, `INSERT IGNORE INTO done (id) VALUES (?)`,
		`CREATE TABLE done (id VARCHAR(64) PRIMARY KEY) ENGINE=InnoDB`,
		`CREATE TABLE account (id INT PRIMARY KEY, bal BIGINT NOT NULL) ENGINE=InnoDB`,
		fmt.Sprintf(`INSERT INTO account SELECT seq, 0 FROM seq_0_to_%d`, fewAccounts))
}

func openDatabase(ctx context.Context, db *sql.DB, d sqlstore.Dialect, closeAll func(), insertDone string, statements ...string) (*arena, error) {
	store := sqlstore.New(db, d, nil)
	variants, err := databaseVariants(ctx, db, store, insertDone, statements)
	if err != nil {
		closeAll()
		return nil, err
	}
	return &arena{close: closeAll, contest: func(load) contest { return contest{unit: "transaction", variants: variants} }}, nil
}

func databaseVariants(ctx context.Context, db *sql.DB, store *sqlstore.Store, insertDone string, statements []string) ([]variant, error) {
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	pay := &once.Operation[struct{}]{Name: "pay"}
	update := func(ctx context.Context, tx *sql.Tx) (struct{}, error) {
		_, err := tx.ExecContext(ctx, `UPDATE account SET bal = bal + 1 WHERE id = ?`, rand.IntN(fewAccounts))
		return struct{}{}, err
	}
	doTx := func(ctx context.Context, w once.Work[struct{}]) error {
		_, err := once.DoTx(ctx, store, w, update)
		return err
	}
	err := seedDuplicates(ctx, func(ctx context.Context, id string) error { return doTx(ctx, pay.For(id)) })
	if err != nil {
		return nil, err
	}
	return []variant{
		repeated("bare transaction", func(ctx context.Context) error { return bareTx(ctx, db, update) }),
		repeated("by hand: the key is a row", func(ctx context.Context) error { return handTx(ctx, db, insertDone, update) }),
		repeated("DoTx, sqlstore, no outcome", func(ctx context.Context) error { return doTx(ctx, pay.For(newID())) }),
		repeated("DoTx, sqlstore, duplicate", func(ctx context.Context) error { return doTx(ctx, pay.For(someDuplicate())) }),
		repeated("DoTx, sqlstore, duplicate, Redelivered", func(ctx context.Context) error {
			return doTx(ctx, pay.For(someDuplicate()).Redelivered())
		}),
	}, nil
}

// handTx is what is written without a library: insert inserts the key, and work
// does nothing if it was there.
func handTx(ctx context.Context, db *sql.DB, insert string, work func(context.Context, *sql.Tx) (struct{}, error)) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	result, err := tx.ExecContext(ctx, insert, newID())
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := work(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func bareTx(ctx context.Context, db *sql.DB, work func(context.Context, *sql.Tx) (struct{}, error)) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := work(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}
