package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/cachetest"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/effectively-once/once/store/tiered"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func TestConformance(t *testing.T) {
	stores := runTx(t, new(cachetest.Memory))
	if n := hits(stores); n < 50 {
		t.Errorf("only %d answers came from the cache: the suite hardly tests it", n)
	}
}

func TestConformanceWithoutTransactions(t *testing.T) {
	db, cache := memstore.New(nil), new(cachetest.Memory)
	storetest.Run(t, storetest.Harness{Open: func(testing.TB) once.Store { return tiered.New(another(db), cache, nil) }})
}

func TestConformanceWithACacheThatMisbehaves(t *testing.T) {
	cache := &cachetest.Unreliable{Cache: new(cachetest.Memory)}
	stores := runTx(t, cache)
	if n := hits(stores); n == 0 {
		t.Error("no answer came from the cache")
	}
}

// runTx runs the suite, and returns the stores that it used.
func runTx(t *testing.T, cache tiered.Cache) (stores []*tiered.TxStore[*memstore.Tx]) {
	storetest.RunTx(t, harness(cache, func(s *tiered.TxStore[*memstore.Tx]) { stores = append(stores, s) }))
	return stores
}

func hits(stores []*tiered.TxStore[*memstore.Tx]) (n int64) {
	for _, s := range stores {
		n += s.Stats().Hits
	}
	return n
}

func harness(cache tiered.Cache, opened func(*tiered.TxStore[*memstore.Tx])) storetest.TxHarness[*memstore.Tx] {
	l := &ledger{store: memstore.New(nil), rows: make(map[string][]string)}
	return storetest.TxHarness[*memstore.Tx]{
		Open: func(testing.TB) once.TxStore[*memstore.Tx] {
			s := tiered.NewTx(another(l.store), cache, &tiered.Options{Wait: 2 * time.Millisecond})
			opened(s)
			return s
		},
		Begin:        func(context.Context) (*memstore.Tx, error) { return l.store.Begin(), nil },
		Commit:       func(_ context.Context, tx *memstore.Tx) error { return tx.Commit() },
		Rollback:     func(_ context.Context, tx *memstore.Tx) error { tx.Rollback(); return nil },
		Effect:       l.effect,
		Count:        l.count,
		SeesInFlight: true,
	}
}

// process is a store as another process has it: with the same records, and
// nothing else in common.
type process struct {
	*memstore.Store
	options *once.Options
}

func another(s *memstore.Store) once.TxStore[*memstore.Tx] {
	return &process{s, once.Options{}.Ready()}
}

func (p *process) Options() *once.Options { return p.options }

// ledger keeps rows as values of a store, each with its own name.
type ledger struct {
	store *memstore.Store

	mu   sync.Mutex
	rows map[string][]string // written ever, committed or not
}

func (l *ledger) effect(_ context.Context, tx *memstore.Tx, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := fmt.Sprint(name, "#", len(l.rows[name]))
	l.rows[name] = append(l.rows[name], row)
	tx.Set(row, "")
	return nil
}

func (l *ledger) count(_ context.Context, name string) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range l.rows[name] {
		if _, ok := l.store.Value(row); ok {
			n++
		}
	}
	return n, nil
}
