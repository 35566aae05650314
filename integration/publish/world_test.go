//go:build linux

package publish

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5"
)

// The engines, by the names that they have in the output.
const (
	pgTable = engines.PGStore + " table"
	pgRows  = engines.PGStore + " rows by log"
	pgLog   = engines.PGStore + " log only"
	pgSQL   = engines.SQLPostgres
	mariaDB = engines.MariaDB
	sqlite  = engines.SQLite
)

var allEngines = []string{pgTable, pgRows, pgLog, mariaDB, sqlite}

// mode is where relays on PostgreSQL find messages.
func mode(p engines.Place) pgstore.OutboxMode {
	return map[string]pgstore.OutboxMode{pgRows: pgstore.OutboxRowsByLog, pgLog: pgstore.OutboxLogOnly}[p.Engine]
}

// tx is a transaction.
type tx struct {
	engines.Tx
	put func(delay time.Duration, ms ...*broker.Message) error
}

func (x tx) exec(statement string, args ...any) error {
	_, err := x.Exec(statement, args...)
	return err
}

// publishing is a store with all capabilities that packages outbox and inbox
// use.
type publishing[T any] interface {
	once.TxStore[T]
	store.Outbox[T]
	store.Bell
	store.Registry
	store.Positions[T]
	store.TxShelf[T]
	Migrate(context.Context) error
}

// world is a store on an engine, independent of its transaction type.
type world struct {
	*engines.Pool
	store   store.Relayable
	own     func(context.Context, func(tx) error) error         // in a transaction that is begun and ended here
	once    func(context.Context, string, func(tx) error) error // in one of once.DoTx
	begin   func(context.Context) (tx, ending, error)
	handler func(func(tx, *broker.Message) error) inbox.Handler
	migrate func(context.Context) error
	reset   func(context.Context) error // gives the slot up
}

// ending ends a transaction.
type ending struct{ commit, rollback func() error }

func open(p engines.Place) (*world, error) {
	pool, err := p.Open(8)
	if err != nil {
		return nil, err
	}
	if pool.PGX == nil {
		db := pool.SQL
		return newWorld(pool, sqlstore.New(db, pool.Dialect, nil), pool.SQLTx,
			func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
			func(x *sql.Tx) ending { return ending{x.Commit, x.Rollback} }), nil
	}
	s := pgstore.New(pool.PGX, &pgstore.Options{Outbox: mode(p)})
	w := newWorld(pool, s, engines.PGX, pool.PGX.Begin, func(x pgx.Tx) ending {
		return ending{
			func() error { return x.Commit(context.Background()) },
			func() error { return x.Rollback(context.Background()) },
		}
	})
	w.reset = s.ResetOutboxSlot
	return w, nil
}

func newWorld[T any](p *engines.Pool, s publishing[T], bind func(context.Context, T) engines.Tx,
	begin func(context.Context) (T, error), end func(T) ending) *world {

	events := outbox.New(s, nil)
	bound := func(ctx context.Context, x T) tx {
		put := func(delay time.Duration, ms ...*broker.Message) error { return events.PutAfter(ctx, x, delay, ms...) }
		return tx{bind(ctx, x), put}
	}
	w := &world{Pool: p, store: s, migrate: s.Migrate}
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

// The tables of the business: committed rows, and the next number of each
// ordering key.
var tables = []string{
	"CREATE TABLE made (id VARCHAR(99), ord VARCHAR(99), seq BIGINT)",
	"CREATE TABLE turn (ord VARCHAR(99) PRIMARY KEY, seq BIGINT)",
}

// newWorldOn creates a database with the tables of the store and of the
// business.
func newWorldOn(t testing.TB, engine string) *world {
	t.Helper()
	w := newWorldAt(t, engines.New(t, engine))
	for _, statement := range tables {
		w.Exec(t, statement)
	}
	for i := range orderKeys {
		w.Exec(t, fmt.Sprintf("INSERT INTO turn (ord, seq) VALUES ('k%d', 0)", i))
	}
	w.prepare(t)
	return w
}

// newWorldAt opens a database and creates the tables of the store.
func newWorldAt(t testing.TB, p engines.Place) *world {
	t.Helper()
	w, err := open(busyFor(p, 10*time.Second)) // of many processes, one at a time writes in SQLite
	must(t, err)
	t.Cleanup(w.Close)
	must(t, w.migrate(t.Context()))
	return w
}

var lockWait = regexp.MustCompile(`busy_timeout\(\d+\)`)

// busyFor is how long a transaction waits for another one. Only SQLite has this
// setting.
func busyFor(p engines.Place, d time.Duration) engines.Place {
	p.DSN = lockWait.ReplaceAllString(p.DSN, fmt.Sprintf("busy_timeout(%d)", d.Milliseconds()))
	return p
}

// prepare reads the log once, because messages can be put into it only after
// that.
func (w *world) prepare(t testing.TB) {
	t.Helper()
	log, ok := w.store.(store.OutboxLog)
	if !ok || mode(w.Place) == pgstore.OutboxTable {
		return
	}
	tail, err := log.TailOutbox(t.Context())
	must(t, err)
	must(t, tail.Close(t.Context()))
}

// table is the name of the outbox's table.
const table = "once_outbox"

// count returns the number that a query asks for.
func (w *world) count(t testing.TB, question string, args ...any) (n int) {
	t.Helper()
	must(t, w.SQL.QueryRow(w.Spelled(question), args...).Scan(&n))
	return n
}

// waits returns the number of unpublished rows.
func (w *world) waits(t testing.TB) int {
	t.Helper()
	return w.count(t, "SELECT count(*) FROM "+table+" WHERE state <> 4")
}

// waiting says how many rows wait, if any do.
func (w *world) waiting(t testing.TB) (open []string) {
	if n := w.waits(t); n > 0 {
		open = append(open, fmt.Sprintf("%d rows of the outbox", n))
	}
	return open
}

// outgoing returns the messages in a state.
func (w *world) outgoing(t testing.TB, state store.OutgoingState) []store.Outgoing {
	t.Helper()
	ms, err := w.store.Outgoing(t.Context(), store.OutgoingQuery{State: state, Limit: 20_000, Bodiless: true})
	must(t, err)
	return ms
}

// order is a committed row with its message.
type order struct {
	id, key string
	seq     int64
}

// made returns the committed rows of the business.
func (w *world) made(t testing.TB) (all []order) {
	t.Helper()
	found, err := w.SQL.Query("SELECT id, ord, seq FROM made")
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
