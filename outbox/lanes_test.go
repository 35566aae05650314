//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// A decision is carried out page by page, also over several lanes.
func TestADecisionOnLanesSkipsNothing(t *testing.T) {
	b := newBench(t)
	b.put(some(1200, "a", "")...)
	q := store.OutgoingQuery{State: store.Pending}
	for lane := range store.Lanes {
		q.Lanes = append(q.Lanes, lane)
	}
	got, err := outbox.Admin{Store: b.store}.Park(t.Context(), q, outbox.Decision{By: "me", Reason: "wrong prices"})
	b.must(err)
	if got.Matched != 1200 || got.Changed != 1200 {
		t.Errorf("of 1200 messages in all lanes: %+v", got)
	}
}

// leasing is a store that ends a context as soon as lanes were leased.
type leasing struct {
	store.Relayable
	leased func()
}

func (s leasing) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	leases, err := s.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
	if len(lanes) > 0 {
		s.leased()
	}
	return leases, err
}

// Run returns after its lanes are free for other relays.
func TestAStopAtTheStartFreesTheLanes(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(b.Context())
		r := b.relay()
		r.Store = leasing{b.store, cancel}
		b.must(r.Run(ctx))
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{1}, time.Hour, nil)
		b.must(err)
		if leases.Relays != 1 || leases.Lanes[0].Relay != ([16]byte{}) {
			b.Errorf("the relay has ended, and there are %d relays, and lane 0 is that of %x", leases.Relays, leases.Lanes[0].Relay)
		}
	})
}

// deaf is a publisher that ignores its context.
type deaf struct{ never chan struct{} }

func (d deaf) Publish(context.Context, []*broker.Message) []error {
	<-d.never
	return nil
}

func (d deaf) Close() error { return nil }

// A publisher that never returns loses its lanes to another relay.
func TestAPublisherThatHangsLosesItsLanes(t *testing.T) {
	inBubble(t, func(b *bench) {
		r, d := b.relay(), deaf{make(chan struct{})}
		r.Publisher = d
		b.put(some(100, "a", "")...)
		stop := b.run(r)
		time.Sleep(10 * time.Second)
		other := b.run(b.relay())
		time.Sleep(24 * time.Hour)
		if n := len(b.sender.taken()); n < 100 {
			b.Errorf("a day later, %d of 100 messages are out, though there is a relay whose publisher works", n)
		}
		close(d.never)
		stop()
		other()
	})
}

// A relay loses its lanes without noticing for some seconds. That costs one
// copy of a message, not one per read.
func TestALostLaneCostsOneCopyOfAMessage(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Publisher = unhurried{b.sender}
		stop := b.run(r)
		time.Sleep(3 * time.Second)
		all := make([]int, store.Lanes)
		for i := range all {
			all[i] = i
		}
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{3}, time.Hour, nil)
		b.must(err)
		b.must(b.store.ReleaseLanes(b.Context(), leases.Lanes[0].Relay, nil)) // they have lapsed
		_, err = b.store.LeaseLanes(b.Context(), [16]byte{3}, time.Hour, all)
		b.must(err)
		b.put(some(100, "a", "")...)
		time.Sleep(time.Minute)
		stop()
		if n := len(b.sender.taken()); n > 200 {
			b.Errorf("100 messages were published %d times, until the relay knew that it has lost their lanes", n)
		}
	})
}

// acting is a publisher that calls a function of the test during a call.
type acting struct {
	*sender
	during func(ms []*broker.Message)
}

func (a acting) Publish(ctx context.Context, ms []*broker.Message) []error {
	a.during(ms)
	return a.sender.Publish(ctx, ms)
}

// A message fails in its batch and is not sent again alone, because its lane is
// to be given up. If the lane stays after all, later messages of the key still
// wait.
func TestALaneThatIsNotGivenUpAfterAllKeepsTheOrderOfItsKeys(t *testing.T) {
	inBubble(t, func(b *bench) {
		key := keyIn(func(lane int) bool { return lane >= 8 }, "key", 0)
		second, step := [16]byte{2}, 0
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" && step == 1 {
				return errors.New("not now")
			}
			return nil
		})
		r := b.relay()
		r.Batch = 4
		r.Publisher = acting{b.sender, func(ms []*broker.Message) {
			switch {
			case step == 0 && slices.Contains(ids(ms), "k0000"):
				step = 1
				if _, err := b.store.LeaseLanes(b.Context(), second, time.Hour, nil); err != nil { // each has 8 lanes to have
					b.Error(err)
				}
				time.Sleep(6 * time.Second)
			case step == 1:
				step = 2
				if err := b.store.ReleaseLanes(b.Context(), second, nil); err != nil { // and leaves
					b.Error(err)
				}
				time.Sleep(6 * time.Second)
			}
		}}
		var all []*broker.Message
		all = append(all, some(5, "k", key)...)
		for i := range 10 {
			all = append(all, some(20, fmt.Sprint("other", i, "-"), keyIn(func(lane int) bool { return lane < 8 }, "other", 1000*i))...)
		}
		b.put(all...)
		stop := b.run(r)
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		stop()
		b.wantAll(all)
		b.wantOrder(key)
	})
}

// keyIn returns an ordering key in a lane that is wanted.
func keyIn(wanted func(lane int) bool, prefix string, from int) string {
	for i := from; ; i++ {
		m := broker.Message{OrderingKey: fmt.Sprint(prefix, i)}
		if wanted(store.Lane(&m)) {
			return m.OrderingKey
		}
	}
}

func TestRelaysShareTheWork(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		var stops []func()
		var all []*broker.Message
		send := func(round string) {
			ms := append(some(100, round+"a", ""), some(20, round+"k", "key")...)
			all = append(all, ms...)
			for part := range slices.Chunk(ms, 7) {
				b.put(part...)
				time.Sleep(300 * time.Millisecond)
			}
		}
		for i := range 5 {
			stops = append(stops, b.run(r))
			send(fmt.Sprint("start", i))
		}
		time.Sleep(time.Minute)
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{1}, time.Nanosecond, nil)
		b.must(err)
		shares := make(map[[16]byte]int)
		for _, lane := range leases.Lanes {
			shares[lane.Relay]++
		}
		if least := slices.Min(slices.Collect(maps.Values(shares))); len(shares) != 5 || least < 1 {
			b.Errorf("the lanes are shared as %v", shares)
		}
		for i, stop := range stops[:4] {
			stop()
			send(fmt.Sprint("stop", i))
		}
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		stops[4]()
		b.wantAll(all)
		if n := r.Stats.Repeated.Load(); n > 0 {
			b.Errorf("%d were repeated", n)
		}
	})
}

// dead is a store of a process that has lost its connection.
type dead struct {
	store.Relayable
	when *atomic.Bool
}

func (d dead) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	if d.when.Load() {
		return store.Leases{}, errDead
	}
	return d.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
}

func (d dead) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if d.when.Load() {
		return nil, errDead
	}
	return d.Relayable.Outgoing(ctx, q)
}

func (d dead) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if d.when.Load() {
		return 0, errDead
	}
	return d.Relayable.Sent(ctx, relay, ms, then)
}

func (d dead) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	if d.when.Load() {
		return errDead
	}
	return d.Relayable.ReleaseLanes(ctx, relay, lanes)
}

func TestADeadRelayIsSucceeded(t *testing.T) {
	inBubble(t, func(b *bench) {
		var gone atomic.Bool
		r := b.relay()
		r.Store = dead{b.store, &gone}
		stop := b.run(r)
		b.put(some(10, "a", "")...)
		b.until("they are out", func() bool { return len(b.sender.taken()) == 10 })
		gone.Store(true)
		b.put(some(10, "b", "")...)
		time.Sleep(time.Second)
		begun := time.Now()
		other := b.run(b.relay())
		b.until("they are out", func() bool { return len(b.sender.taken()) == 20 })
		if spent := time.Since(begun); spent < 4*time.Second || spent > 10*time.Second {
			b.Errorf("the other took over after %v, the lease is 8 s", spent)
		}
		stop()
		other()
		b.wantAll(append(some(10, "a", ""), some(10, "b", "")...))
	})
}

// A relay stalls during a publish until another relay has its lease.
func TestAStalledRelayChangesNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		stalled := &sender{gate: make(chan struct{})}
		r := b.relay()
		var gone atomic.Bool
		r.Store, r.Publisher, r.Then = dead{b.store, &gone}, stalled, store.Keep
		stop := b.run(r)
		b.put(some(10, "a", "")...)
		time.Sleep(5 * time.Second)
		gone.Store(true) // it cannot renew
		other := b.relay()
		other.Then = store.Keep
		stopOther := b.run(other)
		b.until("the other has sent them", func() bool { return len(b.sender.taken()) == 10 })
		time.Sleep(time.Second)
		kept := b.rows(store.Published)
		b.put(some(10, "b", "")...)
		b.until("the other has sent these too", func() bool { return len(b.sender.taken()) == 20 })
		gone.Store(false)
		close(stalled.gate)
		time.Sleep(time.Minute)
		stop()
		stopOther()
		if n := r.Stats.Repeated.Load(); n != 10 {
			b.Errorf("%d were found to be sent twice, want 10", n)
		}
		if len(kept) != 10 || len(b.rows(store.Published)) != 20 {
			b.Errorf("kept %d, then %d", len(kept), len(b.rows(store.Published)))
		}
	})
}
