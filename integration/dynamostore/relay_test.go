package dynamostore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/dynamostore"
)

// paper is what was published, in order. Its Publisher fails now and then, after
// it has published a part.
type paper struct {
	mu    sync.Mutex
	calls int
	keys  map[string][]string
	times map[string]int
}

func (p *paper) Publish(_ context.Context, ms []*broker.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	errs := make([]error, len(ms))
	for i, m := range ms {
		if p.calls%5 == 0 && i > len(ms)/2 {
			errs[i] = fmt.Errorf("call %d failed", p.calls)
			continue
		}
		if p.times[m.ID]++; p.times[m.ID] == 1 {
			p.keys[m.OrderingKey] = append(p.keys[m.OrderingKey], m.ID)
		}
	}
	if p.calls%5 != 0 {
		return nil
	}
	return errs
}

func (*paper) Close() error { return nil }

func (p *paper) published() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.times)
}

// Relays that come and go, on an index that is behind, publish every message, and
// each ordering key in its order.
func TestRelaysComeAndGo(t *testing.T) {
	fake := new(dynamofake.Server)
	s := openShop(t, fake)
	fake.HoldIndexes(5)
	out := &paper{keys: make(map[string][]string), times: make(map[string]int)}
	const messages, keys = 300, 7
	var relays sync.WaitGroup
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		relay := &outbox.Relay{Store: s.open(), Publisher: out, Batch: 10,
			Lease: time.Second, PublishTime: 100 * time.Millisecond, Poll: 5 * time.Millisecond,
			Retry: outbox.Retry{First: time.Millisecond, Limit: 10 * time.Millisecond, Attempts: 1000}}
		relays.Add(1)
		go func() {
			defer relays.Done()
			if err := relay.Run(ctx); err != nil {
				t.Errorf("Run returned %v", err)
			}
		}()
		return cancel
	}
	stops := []func(){start(), start()}
	writers := []*dynamostore.Store{s.open(), s.open()} // whose clocks differ by up to a second
	for n := range messages {
		m := store.Outgoing{Message: broker.Message{ID: fmt.Sprintf("%03d", n), Topic: "topic", OrderingKey: fmt.Sprint("key ", n%keys)}}
		w := writers[n/keys%2]
		tx := w.Begin()
		proof.Must(t, w.PutTx(t.Context(), tx, []store.Outgoing{m}))
		proof.Must(t, tx.Commit(t.Context()))
		if n%60 == 59 { // one goes, and another comes
			stops[0]()
			stops = append(stops[1:], start())
		}
	}
	proof.Await(t, "all are published", func() bool { return out.published() == messages })
	for _, stop := range stops {
		stop()
	}
	relays.Wait()
	for key, ids := range out.keys {
		for i := range ids[1:] {
			if ids[i] > ids[i+1] {
				t.Fatalf("the messages of %q were published in the order %q", key, ids)
			}
		}
	}
}
