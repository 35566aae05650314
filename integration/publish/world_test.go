//go:build linux

package publish

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
	"github.com/effectively-once/once/outbox"
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
	pgTable = "pgstore table"
	pgRows  = "pgstore rows by log"
	pgLog   = "pgstore log only"
	mariaDB = "mariadb"
	sqlite  = "sqlite"
)

var engines = []string{pgTable, pgRows, pgLog, mariaDB, sqlite}

// base is a database, as it is said to a process.
type base struct{ Engine, DSN string }

func (b base) postgres() bool { return strings.HasPrefix(b.Engine, "pgstore") }

// mode is where relays on PostgreSQL find messages.
func (b base) mode() pgstore.OutboxMode {
	return map[string]pgstore.OutboxMode{pgRows: pgstore.OutboxRowsByLog, pgLog: pgstore.OutboxLogOnly}[b.Engine]
}

// No test cuts the power, so nothing needs to be synced.
const sqliteSettings = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)" +
	"&_txlock=immediate"

// newBase makes a database for one test.
func newBase(t testing.TB, engine string) base {
	t.Helper()
	switch engine {
	case mariaDB:
		dsn := testenv.MariaDB(t)
		db := openSQL(t, "mysql", dsn)
		testenv.CheckMariaDB(t, asker(db))
		name := newDatabase(t, db)
		t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+name) })
		return base{engine, dsn[:strings.LastIndex(dsn, "/")+1] + name}
	case sqlite:
		return base{engine, "file:" + filepath.Join(t.TempDir(), "once.db") + sqliteSettings}
	}
	dsn := testenv.Postgres(t)
	db := openSQL(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(db))
	address, err := url.Parse(dsn)
	must(t, err)
	name := newDatabase(t, db)
	t.Cleanup(func() { dropPostgres(t, db, name) })
	address.Path = "/" + name
	return base{engine, address.String()}
}

var databases atomic.Int64

func newDatabase(t testing.TB, db *sql.DB) string {
	name := fmt.Sprintf("publish_%d_%d", time.Now().UnixNano(), databases.Add(1))
	mustExec(t, db, "CREATE DATABASE "+name)
	return name
}

// dropPostgres drops a database, and its slots, which somebody who was killed may still seem to read.
func dropPostgres(t testing.TB, db *sql.DB, name string) {
	await(t, "the slots are free", func() bool {
		var left int
		err := db.QueryRow(`SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots
			WHERE database = $1 AND active`, name).Scan(&left)
		if err == nil && left == 0 {
			_, err = db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, name)
		}
		return err == nil && left == 0
	})
	mustExec(t, db, "DROP DATABASE "+name+" WITH (FORCE)")
}

func mustExec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatalf("%.200s: %v", statement, err)
	}
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

// tx is a transaction. Statements have question marks on all engines.
type tx struct {
	exec func(statement string, args ...any) error
	ask  func(to *int64, statement string, args ...any) error
	put  func(delay time.Duration, ms ...*broker.Message) error
}

// publishing is a store with all that packages outbox and inbox can use.
type publishing[T any] interface {
	once.TxStore[T]
	store.Outbox[T]
	store.Bell
	store.Registry
	store.Positions[T]
	store.TxShelf[T]
}

// world is a store on an engine, whatever its transactions are.
type world struct {
	base
	store   store.Relayable
	own     func(context.Context, func(tx) error) error         // in a transaction that is begun and ended here
	once    func(context.Context, string, func(tx) error) error // in one of once.DoTx
	begin   func(context.Context) (tx, ending, error)
	handler func(func(tx, *broker.Message) error) inbox.Handler
	migrate func(context.Context) error
	reset   func(context.Context) error // gives the slot up
	db      *sql.DB                     // to look at the rows
	close   func()
}

// ending ends a transaction.
type ending struct{ commit, rollback func() error }

func (b base) open() (*world, error) {
	switch b.Engine {
	case mariaDB:
		return b.openSQL("mysql", sqlstore.MySQL)
	case sqlite:
		return b.openSQL("sqlite", sqlstore.SQLite)
	}
	return b.openPostgres()
}

func (b base) openPostgres() (*world, error) {
	config, err := pgxpool.ParseConfig(b.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", b.DSN)
	if err != nil {
		return nil, err
	}
	s := pgstore.New(pool, &pgstore.Options{Outbox: b.mode()})
	bind := func(ctx context.Context, x pgx.Tx) tx {
		return tx{
			exec: func(statement string, args ...any) error {
				_, err := x.Exec(ctx, numbered(statement), args...)
				return err
			},
			ask: func(to *int64, statement string, args ...any) error {
				return x.QueryRow(ctx, numbered(statement), args...).Scan(to)
			},
		}
	}
	w := newWorld(s, bind, pool.Begin,
		func(x pgx.Tx) ending {
			return ending{
				func() error { return x.Commit(context.Background()) },
				func() error { return x.Rollback(context.Background()) },
			}
		})
	w.base, w.migrate, w.reset, w.db = b, s.Migrate, s.ResetOutboxSlot, db
	w.close = func() { pool.Close(); _ = db.Close() }
	return w, nil
}

func (b base) openSQL(driver string, d sqlstore.Dialect) (*world, error) {
	db, err := sql.Open(driver, b.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	s := sqlstore.New(db, d, nil)
	bind := func(ctx context.Context, x *sql.Tx) tx {
		return tx{
			exec: func(statement string, args ...any) error {
				_, err := x.ExecContext(ctx, statement, args...)
				return err
			},
			ask: func(to *int64, statement string, args ...any) error {
				return x.QueryRowContext(ctx, statement, args...).Scan(to)
			},
		}
	}
	w := newWorld(s, bind, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		func(x *sql.Tx) ending { return ending{x.Commit, x.Rollback} })
	w.base, w.migrate, w.db = b, s.Migrate, db
	w.close = func() { _ = db.Close() }
	return w, nil
}

func newWorld[T any](s publishing[T], bind func(context.Context, T) tx, begin func(context.Context) (T, error),
	end func(T) ending) *world {

	events := outbox.New(s, nil)
	bound := func(ctx context.Context, x T) tx {
		b := bind(ctx, x)
		b.put = func(delay time.Duration, ms ...*broker.Message) error { return events.PutAfter(ctx, x, delay, ms...) }
		return b
	}
	w := &world{store: s}
	w.begin = func(ctx context.Context) (tx, ending, error) {
		x, err := begin(ctx)
		if err != nil {
			return tx{}, ending{}, err
		}
		return bound(ctx, x), end(x), nil
	}
	w.own = func(ctx context.Context, do func(tx) error) error {
		x, e, err := w.begin(ctx)
		if err != nil {
			return err
		}
		if err := do(x); err != nil {
			_ = e.rollback()
			return err
		}
		return e.commit()
	}
	op := &once.Operation[int]{Name: "produce"}
	w.once = func(ctx context.Context, key string, do func(tx) error) error {
		_, err := once.DoTx(ctx, s, op.For(key), func(ctx context.Context, x T) (int, error) { return 0, do(bound(ctx, x)) })
		return err
	}
	w.handler = func(do func(tx, *broker.Message) error) inbox.Handler {
		return inbox.Tx(s, func(ctx context.Context, x T, m *broker.Message) error { return do(bound(ctx, x), m) })
	}
	return w
}

// numbered writes placeholders as PostgreSQL has them.
func numbered(statement string) string {
	for n := 1; strings.Contains(statement, "?"); n++ {
		statement = strings.Replace(statement, "?", "$"+strconv.Itoa(n), 1)
	}
	return statement
}

// The business: what was made, and the next number of each ordering key.
var tables = []string{
	"CREATE TABLE made (id VARCHAR(99), ord VARCHAR(99), seq BIGINT)",
	"CREATE TABLE turn (ord VARCHAR(99) PRIMARY KEY, seq BIGINT)",
}

// newWorldOn makes a database with the tables of the store and of the business.
func newWorldOn(t testing.TB, engine string) *world {
	t.Helper()
	w := newBase(t, engine).world(t)
	for _, statement := range tables {
		mustExec(t, w.db, statement)
	}
	for i := range orderKeys {
		mustExec(t, w.db, fmt.Sprintf("INSERT INTO turn (ord, seq) VALUES ('k%d', 0)", i))
	}
	w.prepare(t)
	return w
}

// world opens a database.
func (b base) world(t testing.TB) *world {
	t.Helper()
	w, err := b.open()
	must(t, err)
	t.Cleanup(w.close)
	must(t, w.migrate(t.Context()))
	return w
}

// prepare has somebody read the log once, without whom nothing may be put into it.
func (w *world) prepare(t testing.TB) {
	t.Helper()
	log, ok := w.store.(store.OutboxLog)
	if !ok || w.mode() == pgstore.OutboxTable {
		return
	}
	tail, err := log.TailOutbox(t.Context())
	must(t, err)
	must(t, tail.Close(t.Context()))
}

// table is the name of the outbox's table.
const table = "once_outbox"

// count is the answer to a question for a number.
func (w *world) count(t testing.TB, question string, args ...any) (n int) {
	t.Helper()
	if w.postgres() {
		question = numbered(question)
	}
	must(t, w.db.QueryRow(question, args...).Scan(&n))
	return n
}

// waits is how many messages are in the table and not published.
func (w *world) waits(t testing.TB) int {
	t.Helper()
	return w.count(t, "SELECT count(*) FROM "+table+" WHERE state <> 4")
}

// outgoing are the messages in a state.
func (w *world) outgoing(t testing.TB, state store.OutgoingState) []store.Outgoing {
	t.Helper()
	ms, err := w.store.Outgoing(t.Context(), store.OutgoingQuery{State: state, Limit: 20_000, Bodiless: true})
	must(t, err)
	return ms
}

// order is a row that was made, with its message.
type order struct {
	id, key string
	seq     int64
}

// made are the rows of the business that were committed.
func (w *world) made(t testing.TB) (all []order) {
	t.Helper()
	found, err := w.db.Query("SELECT id, ord, seq FROM made")
	must(t, err)
	defer found.Close()
	for found.Next() {
		var o order
		must(t, found.Scan(&o.id, &o.key, &o.seq))
		all = append(all, o)
	}
	must(t, found.Err())
	return all
}
