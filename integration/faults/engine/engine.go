// Package engine opens databases for the tests of faults and of histories. It
// gives all stores and transactions one type, so that a test is written once.
//
// The engines are SQLite, PostgreSQL through database/sql, PostgreSQL through
// pgx, and MariaDB. Statements have no arguments and are passed unchanged, so
// tests spell the dialects. The driver of SQLite is large, so a test that needs
// it imports it itself.
package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
)

// The names of the engines.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"         // store/sqlstore on pgx's driver for database/sql
	PGStore  = "postgres-pgstore" // store/pgstore
	MariaDB  = "mariadb"
)

// Engine is a kind of database with the store for it.
type Engine struct {
	Name    string
	Dialect sqlschema.Dialect
}

// All returns all engines. All except the first need a server.
func All() []Engine {
	return []Engine{
		{SQLite, sqlschema.SQLite},
		{Postgres, sqlschema.PostgreSQL},
		{PGStore, sqlschema.PostgreSQL},
		{MariaDB, sqlschema.MySQL},
	}
}

// Named returns the engine with a name.
func Named(name string) (Engine, error) {
	for _, e := range All() {
		if e.Name == name {
			return e, nil
		}
	}
	return Engine{}, fmt.Errorf("there is no engine %q", name)
}

// OnEach runs a test in parallel on each engine, or on those named.
func OnEach(t *testing.T, test func(*testing.T, Engine), only ...string) {
	t.Helper()
	for _, e := range All() {
		if len(only) > 0 && !slices.Contains(only, e.Name) {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			test(t, e)
		})
	}
}

// Tx is a transaction of any engine.
type Tx interface {
	Exec(ctx context.Context, statement string) error
	// Number runs a query that returns one number.
	Number(ctx context.Context, query string) (int64, error)
	Commit(context.Context) error
	Rollback(context.Context) error
}

// Store is a store of any engine.
type Store interface {
	once.TxStore[Tx]
	once.Lister
	Migrate(context.Context) error
}

// Database is a pool of connections with a store on it. Two of them on one DSN share nothing in this process.
type Database struct {
	Store Store
	conns conns
}

// conns has the common methods of the pools of database/sql and of pgx.
type conns interface {
	Exec(ctx context.Context, statement string) error
	Number(ctx context.Context, query string) (int64, error)
	Begin(context.Context) (Tx, error)
	Close()
}

// Open opens a database. It adds settings, in the driver's spelling, to the
// DSN.
func (e Engine) Open(dsn string, settings ...string) (*Database, error) {
	dsn, err := e.with(dsn, settings)
	if err != nil {
		return nil, err
	}
	if e.Name == PGStore {
		return openPGX(dsn)
	}
	return openSQL(e, dsn)
}

// Connect is like Open for a test, which closes the database at its end.
func (e Engine) Connect(t testing.TB, dsn string, settings ...string) *Database {
	t.Helper()
	d, err := e.Open(dsn, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// Migrated returns a fresh, open database with the tables of a store, and its
// DSN.
func (e Engine) Migrated(t testing.TB, settings ...string) (*Database, string) {
	t.Helper()
	dsn := e.Fresh(t)
	d := e.Connect(t, dsn, settings...)
	if err := d.Store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d, dsn
}

// Exec runs a statement outside any transaction.
func (d *Database) Exec(ctx context.Context, statement string) error {
	return d.conns.Exec(ctx, statement)
}

// Number runs a query that returns one number, outside any transaction.
func (d *Database) Number(ctx context.Context, query string) (int64, error) {
	return d.conns.Number(ctx, query)
}

// Begin begins a transaction that the caller ends. It lasts no longer than ctx.
func (d *Database) Begin(ctx context.Context) (Tx, error) { return d.conns.Begin(ctx) }

// Close closes the connections. It waits for those of pgx that are in use.
func (d *Database) Close() { d.conns.Close() }

// MustExec runs statements outside any transaction.
func (d *Database) MustExec(t testing.TB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if err := d.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatalf("%v\n%s", err, statement)
		}
	}
}

// MustNumber returns the result of a query for one number.
func (d *Database) MustNumber(t testing.TB, query string) int64 {
	t.Helper()
	n, err := d.Number(context.WithoutCancel(t.Context()), query)
	if err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	return n
}

// erased gives a store the transaction type Tx.
type erased[T any] struct {
	backing[T]
	wrap   func(T) Tx
	unwrap func(Tx) T
}

type backing[T any] interface {
	once.TxStore[T]
	once.Lister
	Migrate(context.Context) error
}

// Unwrap returns the store with its own type of transaction.
func (s erased[T]) Unwrap() once.Store { return s.backing }

func (s erased[T]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	return s.backing.Transact(ctx, rs, func(tx T, recs []once.Record) ([]once.Settlement, error) {
		return body(s.wrap(tx), recs)
	})
}

func (s erased[T]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	return s.backing.ClaimTx(ctx, s.unwrap(tx), rs)
}

func (s erased[T]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	return s.backing.SettleTx(ctx, s.unwrap(tx), sets)
}
