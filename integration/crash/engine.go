//go:build linux

package crash

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // its driver is only available from the registry

	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// The names of the engines in the output.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
	PGStore  = "postgres-pgstore"
	Parts    = "pgstore-partitions" // pgstore that forgets by dropping partitions
	MariaDB  = "mariadb"
)

// place is the database of a world.
type place struct {
	Engine, DSN string
	Prefix      string // of the store's tables
}

// open opens a world with few connections, all of which pass the trap.
func (p place) open(t *trap) (world, error) {
	switch p.Engine {
	case SQLite:
		return p.openSQLite(t)
	case Postgres:
		return p.openPostgres(t)
	case MariaDB:
		return p.openMariaDB(t)
	case PGStore, Parts:
		return p.openPGStore(t)
	}
	return nil, fmt.Errorf("no such engine: %q", p.Engine)
}

const connections = 4

func (p place) openSQLite(t *trap) (world, error) {
	registered, err := sql.Open("sqlite", p.DSN)
	if err != nil {
		return nil, err
	}
	d := registered.Driver()
	return p.openSQL(sqlstore.SQLite, trapped{driver: d, open: func(context.Context) (driver.Conn, error) { return d.Open(p.DSN) }, trap: t})
}

func (p place) openPostgres(t *trap) (world, error) {
	config, err := pgx.ParseConfig(p.DSN)
	if err != nil {
		return nil, err
	}
	config.DialFunc = dialer(t, postgres)
	c := stdlib.GetConnector(*config)
	return p.openSQL(sqlstore.PostgreSQL, trapped{driver: c.Driver(), open: c.Connect, trap: t})
}

func (p place) openMariaDB(t *trap) (world, error) {
	config, err := mysql.ParseDSN(p.DSN)
	if err != nil {
		return nil, err
	}
	config.DialFunc = dialer(t, mysqlProtocol)
	config.Logger = &mysql.NopLogger{} // killed servers are expected
	c, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return p.openSQL(sqlstore.MySQL, trapped{driver: c.Driver(), open: c.Connect, trap: t, prepares: true})
}

func (p place) openSQL(dialect sqlstore.Dialect, c trapped) (world, error) {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	store := sqlstore.New(db, dialect, &sqlstore.Options{Prefix: p.Prefix})
	insert, list := "INSERT INTO effect (id, mark) VALUES (?, ?)", "SELECT mark FROM effect WHERE id = ?"
	if dialect == sqlstore.PostgreSQL {
		insert, list = insertPostgres, listPostgres
	}
	return &on[*sql.Tx]{
		trappedStore: newTrappedStore(store, c.trap),
		tables:       store.Migrate,
		exec: func(ctx context.Context, statement string) error {
			_, err := db.ExecContext(ctx, statement)
			return err
		},
		list: func(ctx context.Context, id string) (marks []string, err error) {
			rows, err := db.QueryContext(ctx, list, id)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var mark string
				if err := rows.Scan(&mark); err != nil {
					return nil, err
				}
				marks = append(marks, mark)
			}
			return marks, rows.Err()
		},
		insert: func(ctx context.Context, tx *sql.Tx, id, mark string) error {
			_, err := tx.ExecContext(ctx, insert, id, mark)
			return err
		},
		inOwnTx: func(ctx context.Context, work func(*sql.Tx) error) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := work(tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
		end: func() { _ = db.Close() },
	}, nil
}

const (
	insertPostgres = "INSERT INTO effect (id, mark) VALUES ($1, $2)"
	listPostgres   = "SELECT mark FROM effect WHERE id = $1"
)

func (p place) openPGStore(t *trap) (world, error) {
	config, err := pgxpool.ParseConfig(p.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.ConnConfig.DialFunc = dialer(t, postgres)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	options := &pgstore.Options{Prefix: p.Prefix}
	if p.Engine == Parts {
		options.Partition = time.Millisecond // each Forget begins a new one
	}
	store := pgstore.New(pool, options)
	return &on[pgx.Tx]{
		trappedStore: newTrappedStore(store, t),
		tables:       store.Migrate,
		exec: func(ctx context.Context, statement string) error {
			_, err := pool.Exec(ctx, statement)
			return err
		},
		list: func(ctx context.Context, id string) ([]string, error) {
			rows, err := pool.Query(ctx, listPostgres, id)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		insert: func(ctx context.Context, tx pgx.Tx, id, mark string) error {
			_, err := tx.Exec(ctx, insertPostgres, id, mark)
			return err
		},
		inOwnTx: func(ctx context.Context, work func(pgx.Tx) error) error {
			return pgx.BeginFunc(ctx, pool, work)
		},
		end: pool.Close,
	}, nil
}
