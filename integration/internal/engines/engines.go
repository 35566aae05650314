// Package engines opens databases for tests with several processes, with the
// stores pgstore and sqlstore. It gives the transactions of both one type.
// Package faults/engine creates the databases.
package engines

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite" // the driver, which package engine does not import

	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/sqlstore"
)

// The names of the engines in the output. That of the first may have a suffix.
const (
	PGStore     = "pgstore"
	SQLPostgres = engine.Postgres // sqlstore on pgx's driver for database/sql
	MariaDB     = "mariadb"
	SQLite      = "sqlite"
)

// Place tells a process which database to use.
type Place struct{ Engine, DSN string }

// Postgres reports whether the store is pgstore.
func (p Place) Postgres() bool { return strings.HasPrefix(p.Engine, PGStore) }

// New creates a database for one test.
func New(t testing.TB, name string) Place {
	t.Helper()
	p := Place{Engine: name}
	made := name
	if p.Postgres() {
		made = engine.PGStore
	}
	e, err := engine.Named(made)
	proof.Must(t, err)
	p.DSN = e.FreshDatabase(t)
	return p
}

// Pool has the connections to a place.
type Pool struct {
	Place
	PGX     *pgxpool.Pool // for package pgstore; nil elsewhere
	SQL     *sql.DB       // for package sqlstore, and to read the rows
	Dialect sqlstore.Dialect
}

// Open opens a place with the given number of connections for a store.
func (p Place) Open(connections int) (*Pool, error) {
	switch {
	case p.Postgres():
		return p.openPGX(connections)
	case p.Engine == SQLPostgres:
		return p.openSQL("pgx", sqlstore.PostgreSQL, connections)
	case p.Engine == MariaDB:
		return p.openSQL("mysql", sqlstore.MySQL, connections)
	}
	return p.openSQL("sqlite", sqlstore.SQLite, connections)
}

func (p Place) openPGX(connections int) (*Pool, error) {
	config, err := pgxpool.ParseConfig(p.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", p.DSN)
	return &Pool{Place: p, PGX: pool, SQL: db}, err
}

func (p Place) openSQL(driver string, d sqlstore.Dialect, connections int) (*Pool, error) {
	db, err := sql.Open(driver, p.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return &Pool{Place: p, SQL: db, Dialect: d}, nil
}

// Close closes the connections. It waits for those of pgx that are in use.
func (p *Pool) Close() {
	if p.PGX != nil {
		p.PGX.Close()
	}
	_ = p.SQL.Close()
}

// Exec runs a statement outside any transaction, or ends the test.
func (p *Pool) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	if _, err := p.SQL.Exec(p.Spelled(statement), args...); err != nil {
		t.Fatalf("%.200s: %v", statement, err)
	}
}

// Spelled replaces the question marks in a statement by the parameters of the
// engine.
func (p Place) Spelled(statement string) string {
	if p.Postgres() || p.Engine == SQLPostgres {
		return numbered(statement)
	}
	return statement
}

func numbered(statement string) string {
	for n := 1; strings.Contains(statement, "?"); n++ {
		statement = strings.Replace(statement, "?", fmt.Sprint("$", n), 1)
	}
	return statement
}

// Tx is a transaction. Statements have question marks on all engines.
type Tx struct {
	Exec func(statement string, args ...any) (int64, error) // returns how many rows it changed
	Ask  func(to *int64, statement string, args ...any) error
}

// PGX returns a transaction of pgx.
func PGX(ctx context.Context, tx pgx.Tx) Tx {
	return Tx{
		Exec: func(statement string, args ...any) (int64, error) {
			tag, err := tx.Exec(ctx, numbered(statement), args...)
			return tag.RowsAffected(), err
		},
		Ask: func(to *int64, statement string, args ...any) error {
			return tx.QueryRow(ctx, numbered(statement), args...).Scan(to)
		},
	}
}

// SQLTx returns a transaction of database/sql.
func (p Place) SQLTx(ctx context.Context, tx *sql.Tx) Tx {
	return Tx{
		Exec: func(statement string, args ...any) (int64, error) {
			done, err := tx.ExecContext(ctx, p.Spelled(statement), args...)
			if err != nil {
				return 0, err
			}
			return done.RowsAffected()
		},
		Ask: func(to *int64, statement string, args ...any) error {
			return tx.QueryRowContext(ctx, p.Spelled(statement), args...).Scan(to)
		},
	}
}
