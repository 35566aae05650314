package engine

import (
	"context"
	"database/sql"
	"net/url"

	_ "github.com/go-sql-driver/mysql" // drivers
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

const connections = 16

func openSQL(e Engine, dsn string) (*Database, error) {
	drivers := map[string]string{SQLite: "sqlite", Postgres: "pgx", MariaDB: "mysql"}
	db, err := sql.Open(drivers[e.Name], dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(connections)
	store := erased[*sql.Tx]{sqlstore.New(db, sqlstore.Dialect(e.Dialect), &sqlstore.Options{Schema: schemaOf(dsn)}),
		func(tx *sql.Tx) Tx { return sqlTx{tx} }, func(tx Tx) *sql.Tx { return tx.(sqlTx).tx }}
	return &Database{Store: store, conns: sqlPool{db}}, nil
}

func openPGX(dsn string) (*Database, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	store := erased[pgx.Tx]{pgstore.New(pool, &pgstore.Options{Schema: schemaOf(dsn)}),
		func(tx pgx.Tx) Tx { return pgxTx{tx} }, func(tx Tx) pgx.Tx { return tx.(pgxTx).tx }}
	return &Database{Store: store, conns: pgxPool{pool}}, nil
}

// schemaOf returns the schema of a PostgreSQL DSN. The store needs its name,
// because equal keys in two schemas of one database share a lock if both are
// found only by the search_path.
func schemaOf(dsn string) string {
	address, err := url.Parse(dsn)
	if err != nil {
		return "" // of another engine
	}
	return address.Query().Get("search_path")
}

type sqlPool struct{ db *sql.DB }

func (p sqlPool) Close() { _ = p.db.Close() }

func (p sqlPool) Exec(ctx context.Context, statement string) error {
	_, err := p.db.ExecContext(ctx, statement)
	return err
}

func (p sqlPool) Number(ctx context.Context, query string) (n int64, err error) {
	err = p.db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

func (p sqlPool) Begin(ctx context.Context) (Tx, error) {
	tx, err := p.db.BeginTx(ctx, nil)
	return sqlTx{tx}, err
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }

func (t sqlTx) Exec(ctx context.Context, statement string) error {
	_, err := t.tx.ExecContext(ctx, statement)
	return err
}

func (t sqlTx) Number(ctx context.Context, query string) (n int64, err error) {
	err = t.tx.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

type pgxPool struct{ pool *pgxpool.Pool }

func (p pgxPool) Close() { p.pool.Close() }

func (p pgxPool) Exec(ctx context.Context, statement string) error {
	_, err := p.pool.Exec(ctx, statement)
	return err
}

func (p pgxPool) Number(ctx context.Context, query string) (n int64, err error) {
	err = p.pool.QueryRow(ctx, query).Scan(&n)
	return n, err
}

func (p pgxPool) Begin(ctx context.Context) (Tx, error) {
	tx, err := p.pool.Begin(ctx)
	return pgxTx{tx}, err
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) Commit(ctx context.Context) error   { return t.tx.Commit(ctx) }
func (t pgxTx) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }

func (t pgxTx) Exec(ctx context.Context, statement string) error {
	_, err := t.tx.Exec(ctx, statement)
	return err
}

func (t pgxTx) Number(ctx context.Context, query string) (n int64, err error) {
	err = t.tx.QueryRow(ctx, query).Scan(&n)
	return n, err
}
