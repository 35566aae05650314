//go:build linux

package outboxlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/pgstore"
)

// A key keeps its order while processes, each with a writer and a relay, change
// their mode one after another.
func TestOrderOverARollingChange(t *testing.T) {
	i := start(t)
	w := newWorld(t, i, pgstore.OutboxTable, "")
	in := func(mode pgstore.OutboxMode) *pgstore.Store {
		return pgstore.New(w.pool, &pgstore.Options{Prefix: "m0_", Outbox: mode})
	}
	const keys, processes = 8, 2
	var mu sync.Mutex
	seen := make(map[string]map[int]bool) // by key
	var wrong []string
	var published atomic.Int64
	publish := func(ms []*broker.Message) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range ms {
			var n int
			_, _ = fmt.Sscan(string(m.Body), &n)
			key := m.OrderingKey
			if seen[key] == nil {
				seen[key] = make(map[int]bool)
			}
			if !seen[key][n] { // the first of each; later ones are duplicates
				if n > 1 && !seen[key][n-1] {
					wrong = append(wrong, fmt.Sprintf("%s: %d before %d", key, n, n-1))
				}
				seen[key][n] = true
				published.Add(1)
			}
		}
	}

	var last [keys]int
	var lock [keys]sync.Mutex
	var put atomic.Int64
	relay := func(s *pgstore.Store) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Add(1)
		go func() {
			defer running.Done()
			r := &outbox.Relay{Store: s, Publisher: publisher(publish), Lease: 3 * time.Second, PublishTime: time.Second}
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		return func() { cancel(); running.Wait() }
	}
	process := func(mode pgstore.OutboxMode) (stop func()) {
		s := in(mode)
		end := relay(s)
		ctx, cancel := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		writing.Add(1)
		go func() {
			defer writing.Done()
			out := outbox.New(s, nil)
			for i := 0; ctx.Err() == nil; i++ {
				k := i % keys
				lock[k].Lock()
				m := &broker.Message{Topic: "t", OrderingKey: fmt.Sprint("key", k), Body: []byte(fmt.Sprint(last[k] + 1))}
				tx, err := w.pool.Begin(context.WithoutCancel(ctx))
				if err == nil {
					if err = out.Put(ctx, tx, m); err == nil {
						err = tx.Commit(context.WithoutCancel(ctx))
					}
					_ = tx.Rollback(context.WithoutCancel(ctx))
				}
				if err == nil { // a Put that is refused is repeated, as by a service that has to wait for a relay
					last[k]++
					put.Add(1)
				}
				lock[k].Unlock()
			}
		}()
		return func() {
			cancel()
			end()
			writing.Wait()
		}
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return published.Load() == put.Load() || len(wrong) > 0
	}
	more := func(n int64) { // waits until n messages are put and published
		t.Helper()
		from, out := put.Load(), published.Load()
		proof.Await(t, "messages are put and published", func() bool { return put.Load() >= from+n && published.Load() >= out+n })
	}

	var running [processes]func()
	for i := range running {
		running[i] = process(pgstore.OutboxTable)
	}
	more(100)
	for _, mode := range []pgstore.OutboxMode{pgstore.OutboxRowsByLog, pgstore.OutboxLogOnly, pgstore.OutboxTable,
		pgstore.OutboxLogOnly, pgstore.OutboxRowsByLog} {
		for i := range running {
			running[i]()
			running[i] = process(mode)
			more(100)
		}
	}
	for i := range running {
		running[i]()
	}
	stop := process(pgstore.OutboxTable) // it continues to read the log
	more(50)
	stop()
	proof.Await(t, "the slot is dropped", func() bool {
		err := w.ResetOutboxSlot(t.Context())
		if err != nil { // messages are not known to be published
			stop := relay(in(pgstore.OutboxTable))
			proof.Await(t, "what is in the log is published", all)
			stop()
		}
		return err == nil
	})
	stop = process(pgstore.OutboxTable)
	more(50)
	stop()
	stop = relay(in(pgstore.OutboxTable))
	defer stop()
	proof.Await(t, "everything is published", all)
	mu.Lock()
	defer mu.Unlock()
	if len(wrong) > 0 {
		t.Errorf("%d of %d are out of order: %q", len(wrong), put.Load(), wrong[:min(len(wrong), 10)])
	}
}

type publisher func([]*broker.Message)

func (p publisher) Publish(_ context.Context, ms []*broker.Message) []error { p(ms); return nil }
func (p publisher) Close() error                                            { return nil }
