package dynamostore

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// picky is a Publisher that refuses some messages, and knows in which order it has
// published the others.
type picky struct {
	mu      sync.Mutex
	refuses string
	all     []string
}

func (p *picky) Publish(_ context.Context, ms []*broker.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(ms))
	for i, m := range ms {
		if m.ID == p.refuses {
			errs[i] = fmt.Errorf("message %s is refused", m.ID)
			continue
		}
		p.all = append(p.all, m.ID)
	}
	return errs
}

func (*picky) Close() error { return nil }

// has reports whether a message was published.
func (p *picky) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.all, id)
}

// A message fails, and the index does not show that it is held or stuck. Neither
// its relay nor the next one publishes what comes after it.
func TestAnIndexLacksWhatFailed(t *testing.T) {
	for _, attempts := range []int{1000, 1} { // it is held, or stuck
		fake := new(dynamofake.Server)
		s := openShop(t, fake)
		out := &picky{refuses: "1"}
		var stats outbox.Stats
		start := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			relay := &outbox.Relay{Store: s.open(), Publisher: out, Batch: 10, Poll: time.Millisecond, Stats: &stats,
				Retry: outbox.Retry{First: time.Millisecond, Limit: time.Millisecond, Attempts: attempts}}
			ended := make(chan error)
			go func() { ended <- relay.Run(ctx) }()
			return func() {
				cancel()
				proof.Must(t, <-ended)
			}
		}
		w := s.open()
		put := func(key string, ids ...string) {
			t.Helper()
			for _, id := range ids {
				tx := w.Begin()
				m := store.Outgoing{Message: broker.Message{ID: id, Topic: "topic", OrderingKey: key}}
				proof.Must(t, w.PutTx(t.Context(), tx, []store.Outgoing{m}))
				proof.Must(t, tx.Commit(t.Context()))
			}
		}
		fake.HideInIndexes(func(key string) bool {
			parts := strings.Split(key, "/") // once#doc:out, the lane, the state, the Seq
			return len(parts) == 4 && (parts[2] == fmt.Sprint(int(store.Held)) || parts[2] == fmt.Sprint(int(store.Stuck)))
		})
		stop := start()
		others := 0
		other := func() { // others get through, and relays have looked for more
			t.Helper()
			for range 5 {
				others++
				id := fmt.Sprint("other ", others)
				put("", id)
				proof.Await(t, id+" is published", func() bool { return out.has(id) })
			}
		}
		put("key", "1", "2", "3")
		proof.Await(t, "the first message is held or stuck", func() bool {
			id := fmt.Sprint("another ", others)
			others++
			put("", id)
			return stats.Held.Load() > 0 || stats.Stuck.Load() > 0
		})
		put("key", "4")
		other()
		stop()
		stop = start()
		other()
		put("key", "5")
		other()
		for _, id := range []string{"2", "3", "4", "5"} {
			if out.has(id) {
				t.Errorf("message %s overtook the first", id)
			}
		}
		out.mu.Lock()
		out.refuses = ""
		out.mu.Unlock()
		fake.HideInIndexes(nil)
		stuck, err := w.Outgoing(t.Context(), store.OutgoingQuery{State: store.Stuck})
		proof.Must(t, err)
		_, err = w.MoveOutgoing(t.Context(), [16]byte{}, stuck, store.Held) // a person replays it
		proof.Must(t, err)
		proof.Await(t, "all are published", func() bool { return out.has("5") })
		stop()
		var order []string
		for _, id := range out.all {
			if len(id) == 1 {
				order = append(order, id)
			}
		}
		if !slices.Equal(order, []string{"1", "2", "3", "4", "5"}) {
			t.Errorf("the messages of the key were published in the order %q", order)
		}
	}
}
