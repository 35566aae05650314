//go:build go1.25

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// link is the store of one process, over a bad network.
type link struct {
	*memstore.Store
	late *sync.WaitGroup
}

var errLink = errors.New("the network failed")

func (l link) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) ([]bool, error) {

	switch delay := time.Duration(rand.Int64N(int64(20 * time.Second))); rand.IntN(20) {
	case 0, 1:
		return nil, errLink // the request is lost
	case 2, 3:
		_, _ = l.Store.HandOver(ctx, relay, ms, rows, then)
		return nil, errLink // the reply is
	case 4:
		return nil, fmt.Errorf("%w: a deadlock", once.ErrConflict)
	case 5: // the request arrives when nobody waits for its reply any more
		l.late.Go(func() {
			time.Sleep(delay)
			_, _ = l.Store.HandOver(context.WithoutCancel(ctx), relay, ms, rows, then)
		})
		return nil, errLink
	case 6:
		time.Sleep(delay) // and the caller's time is over
	}
	return l.Store.HandOver(ctx, relay, ms, rows, then)
}

// Relays on bad networks hand messages over, and are stopped and started, while
// people park messages and replay them. Each message comes once, and those of a key
// in their order.
func TestRelaysOnBadNetworksHandOverOnceAndInOrder(t *testing.T) {
	for round := range 20 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { synctest.Test(t, badNetworks) })
	}
}

func badNetworks(t *testing.T) {
	const keys, each = 8, 30
	shared, late := memstore.New(nil), new(sync.WaitGroup)
	defer late.Wait()
	open(t, storebroker.New(shared, nil), "billing")

	var processes sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 3 {
		processes.Go(func() {
			for ctx.Err() == nil {
				mine := link{shared, late}
				life, cancel := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(40*time.Second))))
				r := &outbox.Relay{Store: mine, Publisher: storebroker.New(mine, nil).Publisher(),
					Retry: outbox.Retry{Attempts: 1000, First: 100 * time.Millisecond, Limit: time.Second},
					Batch: 1 + rand.IntN(10), StopTime: time.Duration(rand.IntN(3)) * time.Second,
					Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
				proof.Must(t, r.Run(life))
				cancel()
			}
		})
	}
	processes.Go(func() { // a person
		admin, by := outbox.Admin{Store: shared}, outbox.Decision{By: "a person", Reason: "to see what happens"}
		for ctx.Err() == nil {
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			_, err := admin.Park(t.Context(), store.OutgoingQuery{OrderingKey: fmt.Sprint(rand.IntN(keys)), Limit: 1}, by)
			proof.Must(t, err)
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			_, err = admin.Replay(t.Context(), store.OutgoingQuery{State: store.Stuck}, by)
			proof.Must(t, err)
		}
	})

	for n := range each {
		tx := shared.Begin()
		for k := range keys {
			m := &broker.Message{ID: fmt.Sprintf("%d-%03d", k, n), Topic: "orders", OrderingKey: fmt.Sprint(k)}
			proof.Must(t, outbox.New(shared, nil).Put(t.Context(), tx, m))
		}
		proof.Must(t, tx.Commit())
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
	}
	got := make(map[string]int)
	last := make(map[string]string)
	for deadline := time.Now().Add(time.Hour); len(got) < keys*each; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages came", len(got), keys*each)
		}
		empty(t, shared, got, last)
	}
	stop()
	processes.Wait()
	late.Wait()
	empty(t, shared, got, last)
	for id, n := range got {
		if n > 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// empty takes all messages out of the queue, so that it does not recognise copies.
func empty(t *testing.T, s *memstore.Store, got map[string]int, last map[string]string) {
	rows, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: store.QueueOf("billing")})
	proof.Must(t, err)
	for _, row := range rows {
		got[row.Key]++
		if key := row.Message.OrderingKey; row.Key <= last[key] {
			t.Errorf("%s came after %s", row.Key, last[key])
		}
		last[row.Message.OrderingKey] = row.Key
		row.State = store.Handled
		proof.Must(t, s.Change(t.Context(), row))
	}
}
