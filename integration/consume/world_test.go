//go:build linux

package consume

import (
	"context"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// The engines.
const (
	pgStore = engines.PGStore
	mariaDB = engines.MariaDB
	sqlite  = engines.SQLite
)

// rows is the transaction of a handler.
type rows = engines.Tx

type (
	single  = func(context.Context, rows, *broker.Message) error
	several = func(context.Context, rows, []*broker.Message) error
)

// consuming is a store with all capabilities that package inbox uses.
type consuming[T any] interface {
	once.TxStore[T]
	store.Registry
	store.Positions[T]
	store.TxShelf[T]
	Migrate(context.Context) error
}

// world is a store on an engine, independent of its transaction type.
type world struct {
	*engines.Pool
	store interface {
		inbox.AdminStore
		OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error)
		Migrate(context.Context) error
	}
	tx    func(single) inbox.Handler
	batch func(several) inbox.Handler
}

// hooks are called before the calls of a store. A nil hook is skipped.
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

func open(p engines.Place, o once.Options, h hooks) (*world, error) {
	pool, err := p.Open(12)
	if err != nil {
		return nil, err
	}
	if pool.PGX != nil {
		return newWorld(pool, pgstore.New(pool.PGX, &pgstore.Options{Options: o}), h, engines.PGX), nil
	}
	return newWorld(pool, sqlstore.New(pool.SQL, pool.Dialect, &sqlstore.Options{Options: o}), h, pool.SQLTx), nil
}

func newWorld[T any](p *engines.Pool, s consuming[T], h hooks, bind func(context.Context, T) rows) *world {
	if h.transactAt != nil {
		s = &hooked[T]{s, h}
	}
	return &world{
		Pool:  p,
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

// The tables of handlers. Only what the tests rely on is unique, so that
// doubled effects show. Effects of one key are numbered in the order of their
// commits, because these do not overlap.
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

// newWorldOn creates a database with the tables of the store and of the
// handlers.
func newWorldOn(t testing.TB, engine string) *world {
	t.Helper()
	w := openWorld(t, engines.New(t, engine))
	must(t, w.store.Migrate(t.Context()))
	for _, statement := range tables[engine] {
		w.Exec(t, statement)
	}
	return w
}

func openWorld(t testing.TB, p engines.Place) *world {
	t.Helper()
	w, err := open(p, once.Options{Logger: testLogger(t)}, hooks{})
	must(t, err)
	t.Cleanup(w.Close)
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
	found, err := w.SQL.Query(w.Spelled(statement), kind)
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

// shelf returns the messages on the shelf, without bodies.
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
