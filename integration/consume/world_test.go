//go:build linux

package consume

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// The engines, by the names that they have in the output.
const (
	pgStore = "pgstore"
	mariaDB = "mariadb"
	sqlite  = "sqlite"
)

// base is a database, as it is said to a process.
type base struct{ Engine, DSN string }

// No test cuts the power, so nothing needs to be synced.
const sqliteSettings = "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)" +
	"&_txlock=immediate"

// newBase makes a database for one test.
func newBase(t testing.TB, engine string) base {
	t.Helper()
	switch engine {
	case pgStore:
		dsn := testenv.Postgres(t)
		db := openSQL(t, "pgx", dsn)
		testenv.CheckPostgres(t, asker(db))
		address, err := url.Parse(dsn)
		must(t, err)
		address.Path = "/" + newDatabase(t, db, " WITH (FORCE)")
		return base{engine, address.String()}
	case mariaDB:
		dsn := testenv.MariaDB(t)
		db := openSQL(t, "mysql", dsn)
		testenv.CheckMariaDB(t, asker(db))
		return base{engine, dsn[:strings.LastIndex(dsn, "/")+1] + newDatabase(t, db, "")}
	}
	return base{engine, "file:" + filepath.Join(t.TempDir(), "once.db") + sqliteSettings}
}

var databases atomic.Int64

func newDatabase(t testing.TB, db *sql.DB, force string) string {
	name := fmt.Sprintf("consume_%d_%d", time.Now().UnixNano(), databases.Add(1))
	_, err := db.Exec("CREATE DATABASE " + name)
	must(t, err)
	t.Cleanup(func() {
		if _, err := db.Exec("DROP DATABASE " + name + force); err != nil {
			t.Error(err)
		}
	})
	return name
}

func openSQL(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

// rows is the transaction of a handler. Statements have question marks on all engines.
type rows struct {
	exec func(statement string, args ...any) (int64, error)
	ask  func(to *int64, statement string, args ...any) error
}

type (
	single  = func(context.Context, rows, *broker.Message) error
	several = func(context.Context, rows, []*broker.Message) error
)

// consuming is a store with all that package inbox can use.
type consuming[T any] interface {
	once.TxStore[T]
	store.Registry
	store.Positions[T]
	store.TxShelf[T]
}

// world is a store on an engine, whatever its transactions are.
type world struct {
	base
	store interface {
		inbox.DeskStore
		OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error)
	}
	tx      func(single) inbox.Handler
	batch   func(several) inbox.Handler
	migrate func(context.Context) error
	db      *sql.DB // to look at the rows
	close   func()
}

// hooks are what stands before the calls of a store; nil: nothing.
type hooks struct {
	transactAt func(store.Position)
}

// hooked is a store with hooks.
type hooked[T any] struct {
	consuming[T]
	hooks hooks
}

func (h *hooked[T]) TransactAt(ctx context.Context, from, to store.Position, body func(T) error) error {
	h.hooks.transactAt(from)
	return h.consuming.TransactAt(ctx, from, to, body)
}

func (b base) open(o once.Options, h hooks) (*world, error) {
	switch b.Engine {
	case pgStore:
		return b.openPostgres(o, h)
	case mariaDB:
		return b.openSQL("mysql", sqlstore.MySQL, o, h)
	}
	return b.openSQL("sqlite", sqlstore.SQLite, o, h)
}

func (b base) openPostgres(o once.Options, h hooks) (*world, error) {
	config, err := pgxpool.ParseConfig(b.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", b.DSN)
	if err != nil {
		return nil, err
	}
	s := pgstore.New(pool, &pgstore.Options{Options: o})
	w := newWorld(s, h, func(ctx context.Context, tx pgx.Tx) rows {
		return rows{
			exec: func(statement string, args ...any) (int64, error) {
				tag, err := tx.Exec(ctx, numbered(statement), args...)
				return tag.RowsAffected(), err
			},
			ask: func(to *int64, statement string, args ...any) error {
				return tx.QueryRow(ctx, numbered(statement), args...).Scan(to)
			},
		}
	})
	w.base, w.migrate, w.db = b, s.Migrate, db
	w.close = func() { pool.Close(); _ = db.Close() }
	return w, nil
}

func (b base) openSQL(driver string, d sqlstore.Dialect, o once.Options, h hooks) (*world, error) {
	db, err := sql.Open(driver, b.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(12)
	db.SetMaxIdleConns(12)
	s := sqlstore.New(db, d, &sqlstore.Options{Options: o})
	w := newWorld(s, h, func(ctx context.Context, tx *sql.Tx) rows {
		return rows{
			exec: func(statement string, args ...any) (int64, error) {
				done, err := tx.ExecContext(ctx, statement, args...)
				if err != nil {
					return 0, err
				}
				return done.RowsAffected()
			},
			ask: func(to *int64, statement string, args ...any) error {
				return tx.QueryRowContext(ctx, statement, args...).Scan(to)
			},
		}
	})
	w.base, w.migrate, w.db = b, s.Migrate, db
	w.close = func() { _ = db.Close() }
	return w, nil
}

func newWorld[T any](s consuming[T], h hooks, bind func(context.Context, T) rows) *world {
	if h.transactAt != nil {
		s = &hooked[T]{s, h}
	}
	return &world{
		store: s,
		tx: func(handle single) inbox.Handler {
			return inbox.Tx(s, func(ctx context.Context, tx T, m *broker.Message) error { return handle(ctx, bind(ctx, tx), m) })
		},
		batch: func(handle several) inbox.Handler {
			return inbox.Batch(s, func(ctx context.Context, tx T, ms []*broker.Message) error {
				return handle(ctx, bind(ctx, tx), ms)
			})
		},
	}
}

// numbered writes placeholders as PostgreSQL has them.
func numbered(statement string) string {
	for n := 1; strings.Contains(statement, "?"); n++ {
		statement = strings.Replace(statement, "?", "$"+strconv.Itoa(n), 1)
	}
	return statement
}

// The tables of handlers. Nothing in them is unique but what the test relies on, so that doubles show. The number of an
// effect is the order in which effects of one key were committed, because those are one after another.
var tables = map[string][]string{
	pgStore: {
		"CREATE TABLE effect (n BIGSERIAL PRIMARY KEY, kind TEXT, id TEXT, ord TEXT, seq BIGINT, process TEXT)",
		"CREATE TABLE projection (item TEXT PRIMARY KEY, version BIGINT)",
	},
	mariaDB: {
		"CREATE TABLE effect (n BIGINT AUTO_INCREMENT PRIMARY KEY, kind VARCHAR(20), id VARCHAR(99), " +
			"ord VARCHAR(99), seq BIGINT, process VARCHAR(99))",
		"CREATE TABLE projection (item VARCHAR(99) PRIMARY KEY, version BIGINT)",
	},
	sqlite: {
		"CREATE TABLE effect (n INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, id TEXT, ord TEXT, seq INTEGER, process TEXT)",
		"CREATE TABLE projection (item TEXT PRIMARY KEY, version INTEGER)",
	},
}

const (
	addEffect  = "INSERT INTO effect (kind, id, ord, seq, process) VALUES (?, ?, ?, ?, ?)"
	setVersion = "UPDATE projection SET version = ? WHERE item = ? AND version BETWEEN ? AND ?"
	getVersion = "SELECT version FROM projection WHERE item = ?"
)

// newWorldOn makes a database with the tables of the store and of handlers.
func newWorldOn(t testing.TB, engine string) *world {
	t.Helper()
	return newBase(t, engine).world(t)
}

func (b base) world(t testing.TB) *world {
	t.Helper()
	w, err := b.open(once.Options{Logger: testLogger(t)}, hooks{})
	must(t, err)
	t.Cleanup(w.close)
	must(t, w.migrate(t.Context()))
	for _, statement := range tables[b.Engine] {
		_, err := w.db.Exec(statement)
		must(t, err)
	}
	return w
}

// effect is a row that a handler wrote.
type effect struct {
	kind, id, ord string
	seq           int64
	process       string
}

// effects returns the rows of a kind, in the order in which they were written.
func (w *world) effects(t testing.TB, kind string) (all []effect) {
	t.Helper()
	statement := "SELECT kind, id, ord, seq, process FROM effect WHERE kind = ? ORDER BY n"
	if w.Engine == pgStore {
		statement = numbered(statement)
	}
	found, err := w.db.Query(statement, kind)
	must(t, err)
	defer found.Close()
	for found.Next() {
		var e effect
		must(t, found.Scan(&e.kind, &e.id, &e.ord, &e.seq, &e.process))
		all = append(all, e)
	}
	must(t, found.Err())
	return all
}

// counts returns how often each id was handled.
func (w *world) counts(t testing.TB) map[string]int {
	t.Helper()
	n := make(map[string]int)
	for _, e := range w.effects(t, "handled") {
		n[e.id]++
	}
	return n
}

// shelf returns all that is on the shelf, without bodies.
func (w *world) shelf(t testing.TB, states ...store.ShelfState) (all []store.Shelved) {
	t.Helper()
	q := store.ShelfQuery{States: states, Limit: 1000, Bodiless: true}
	for {
		page, err := w.store.Shelved(t.Context(), q)
		must(t, err)
		if all = append(all, page...); len(page) < q.Limit {
			return all
		}
		q.After = page[len(page)-1].Seq
	}
}
