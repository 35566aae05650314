//go:build linux

package cosmosstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cosmosstore"
)

// desk is a publisher that keeps the IDs of what it gets.
type desk struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (d *desk) Publish(_ context.Context, ms []*broker.Message) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range ms {
		d.ids[m.ID] = true
	}
	return nil
}

func (*desk) Close() error { return nil }

func (d *desk) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ids[id]
}

// relay runs a relay, on a store that reads the change feed often, until the test
// ends.
func relay(t *testing.T, s *fakecosmos.Server, poll time.Duration) (*cosmosstore.Store, *desk) {
	proof.Must(t, create(t.Context(), s.URL))
	o, err := open(s.URL, &cosmosstore.Options{Partition: beforeSlash, FeedEvery: 10 * time.Millisecond})
	proof.Must(t, err)
	d := &desk{ids: make(map[string]bool)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r := &outbox.Relay{Store: o.store, Publisher: d, Poll: poll}
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return o.store, d
}

// putAlone puts a message beside an item.
func putAlone(t *testing.T, s *cosmosstore.Store, id string) {
	t.Helper()
	tx := s.Begin()
	tx.CreateItem(entry(id, 0))
	proof.Must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: id, Topic: "t", OrderingKey: "k"}}}))
	proof.Must(t, tx.Commit(t.Context()))
}

// A relay that polls each hour publishes what is put, also over splits, because the
// change feed wakes it. While it waits it reads only the feed, except for its leases
// and messages that are held, each few seconds.
func TestThePutOfATransactionWakesARelay(t *testing.T) {
	t.Parallel()
	a := fakecosmos.New()
	t.Cleanup(a.Close)
	s, d := relay(t, a, time.Hour)
	for i := range 3 {
		id := fmt.Sprint(i)
		if i == 2 {
			a.Split("office", "accounts")
		}
		putAlone(t, s, id)
		proof.Await(t, "message "+id+" is published", func() bool { return d.has(id) })
		var feeds, others atomic.Int64
		proof.Await(t, "the relay reads only the feed", func() bool {
			feeds.Store(0)
			others.Store(0)
			a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
				if r.Kind == "Feed" {
					feeds.Add(1)
				} else {
					others.Add(1)
				}
				return fakecosmos.None
			})
			proof.Await(t, "the feed is read", func() bool { return feeds.Load() > 24 })
			return others.Load() == 0
		})
		a.SetFault(nil)
	}
}

// Without its feed, a relay publishes as late as it polls.
func TestARelayWithoutTheFeedPolls(t *testing.T) {
	t.Parallel()
	a := fakecosmos.New()
	t.Cleanup(a.Close)
	a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		if r.Kind == "Feed" {
			return fakecosmos.Refused
		}
		return fakecosmos.None
	})
	s, d := relay(t, a, 20*time.Millisecond)
	for i := range 3 {
		id := fmt.Sprint(i)
		putAlone(t, s, id)
		proof.Await(t, "message "+id+" is published", func() bool { return d.has(id) })
	}
}
