//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// park parks a message by hand.
func (b *bench) park(state store.OutgoingState, id string) {
	b.Helper()
	tally, err := outbox.Admin{Store: b.store}.Park(b.Context(), store.OutgoingQuery{State: state, IDs: []string{id}},
		outbox.Decision{By: "me", Reason: "wrong prices"})
	b.must(err)
	if tally.Changed != 1 {
		b.Fatalf("Park of %s changed %d messages, want 1", id, tally.Changed)
	}
}

// replay replays all Stuck messages.
func (b *bench) replay() {
	b.Helper()
	_, err := outbox.Admin{Store: b.store}.Replay(b.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
	b.must(err)
}

// wantNone checks that no message of a prefix was taken.
func (b *bench) wantNone(prefix string) {
	b.Helper()
	for _, id := range b.sender.taken() {
		if strings.HasPrefix(id, prefix) {
			b.Errorf("%s was published, although an earlier message of its ordering key is parked", id)
		}
	}
}

// A person parks a message that is retried. Neither the messages that wait for
// it nor those that are put later are published.
func TestNoMessagePassesOneThatAPersonParked(t *testing.T) {
	for _, from := range []string{"table", "log"} {
		t.Run(from, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				var mended atomic.Bool
				b.sender.set(nil, func(m *broker.Message) error {
					if m.OrderingKey == "key" && !mended.Load() {
						return errors.New("cannot be taken now")
					}
					return nil
				})
				r, put := b.relay(), b.put
				if from == "log" {
					log := newLogStore(b.store)
					r.Store, put = log, log.put
				}
				stop := b.run(r)
				put(append(some(20, "k", "key"), some(5, "a", "")...)...)
				b.until("the others are out", func() bool { return len(b.sender.taken()) == 5 })
				put(message("z", ""))
				b.until("the key is held", func() bool { return len(b.rows(store.Held)) > 0 })
				mended.Store(true)
				b.park(store.Held, "k0000")
				time.Sleep(17 * time.Millisecond)
				put(message("k1000", "key"))
				time.Sleep(time.Hour)
				put(message("k2000", "key"))
				time.Sleep(time.Hour)
				b.wantNone("k")
				stop()
			})
		})
	}
}

// A person parks a message that is not due yet. It did not hold up others before.
func TestNoMessageThatIsPutPassesOneThatAPersonParked(t *testing.T) {
	for _, from := range []string{"table", "log"} {
		t.Run(from, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				r, put := b.relay(), b.put
				if from == "log" {
					log := newLogStore(b.store)
					r.Store, put = log, log.put
				}
				stop := b.run(r)
				tx := b.store.Begin()
				b.must(b.events.PutAfter(b.Context(), tx, time.Hour, message("k0000", "key")))
				b.must(tx.Commit())
				for i := range 100 { // at any moment of a poll
					put(message(fmt.Sprint("a", i), ""))
					time.Sleep(77 * time.Millisecond)
				}
				b.park(store.Delayed, "k0000")
				for i := range 20 {
					put(message(fmt.Sprint("k1", i), "key"))
					time.Sleep(17 * time.Millisecond)
				}
				time.Sleep(time.Hour)
				b.wantNone("k")
				stop()
			})
		})
	}
}

// A message is replayed so soon that the relay has not learned that it was Stuck.
func TestNoMessagePassesOneThatWasReplayedAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		stop := b.run(b.relay())
		tx := b.store.Begin()
		b.must(b.events.PutAfter(b.Context(), tx, time.Hour, message("k0000", "key")))
		b.must(tx.Commit())
		time.Sleep(time.Second)
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		b.park(store.Delayed, "k0000")
		_, err := outbox.Admin{Store: b.store}.Replay(b.Context(), store.OutgoingQuery{IDs: []string{"k0000"}},
			outbox.Decision{By: "me", Reason: "right after all"})
		b.must(err)
		b.put(message("k0001", "key"))
		time.Sleep(time.Second)
		b.sender.set(nil, nil)
		b.until("both are out", func() bool { return len(b.sender.taken()) == 2 })
		b.wantOrder("key")
		stop()
	})
}

// A person parks a message while its chunk is published.
func TestAParkAppliesToAChunkThatIsBeingPublished(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Batch = 1
		var parked atomic.Bool
		b.sender.set(nil, func(m *broker.Message) error {
			time.Sleep(time.Second) // a slow broker
			if m.ID == "k0000" && !parked.Swap(true) {
				b.park(store.Pending, "k0002")
			}
			return nil
		})
		b.put(some(10, "k", "key")...)
		stop := b.run(r)
		time.Sleep(time.Hour)
		if got := b.sender.taken(); len(got) != 2 {
			b.Errorf("k0002 was parked, and %q were published, want k0000 and k0001", got)
		}
		stop()
	})
}

// Nothing can overtake a message without an ordering key. It is held all the same,
// and others are not.
func TestAParkOfAMessageWithoutAKeyAppliesToAChunkThatIsBeingPublished(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Batch = 1
		var parked atomic.Bool
		b.sender.set(nil, func(m *broker.Message) error {
			time.Sleep(time.Second) // a slow broker
			if m.ID == "k0000" && !parked.Swap(true) {
				b.park(store.Pending, "k0005")
			}
			return nil
		})
		b.put(some(10, "k", "")...)
		stop := b.run(r)
		time.Sleep(time.Hour)
		if got := b.sender.taken(); len(got) != 9 || slices.Contains(got, "k0005") {
			b.Errorf("k0005 was parked, and %q were published, want the 9 others", got)
		}
		b.sender.set(nil, nil)
		b.replay()
		b.until("all are out", func() bool { return len(b.sender.taken()) == 10 })
		stop()
	})
}

// cutStore is a store whose leases cannot be renewed while it is cut off.
type cutStore struct {
	store.Relayable
	cut *atomic.Bool
}

func (s cutStore) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	if s.cut.Load() {
		return store.Leases{}, errors.New("the network is cut")
	}
	return s.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
}

// While a relay publishes a chunk, another relay has its lanes for a while, and
// makes a message Stuck. The first one gets the lanes back, and may not go on
// with what it had read.
func TestAChunkIsNotContinuedInALaterTermOfItsLane(t *testing.T) {
	inBubble(t, func(b *bench) {
		var cut atomic.Bool
		r := b.relay()
		r.Store, r.Batch = cutStore{b.store, &cut}, 1
		gate := make(chan struct{})
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" {
				<-gate
			}
			return nil
		})
		b.put(some(10, "k", "key")...)
		stop := b.run(r)
		defer stop()
		time.Sleep(time.Second)
		cut.Store(true)
		time.Sleep(9 * time.Second) // the leases lapse
		other := [16]byte{7}
		all := make([]int, store.Lanes)
		for i := range all {
			all[i] = i
		}
		_, err := b.store.LeaseLanes(b.Context(), other, time.Minute, all)
		b.must(err)
		ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{IDs: []string{"k0001"}})
		b.must(err)
		_, err = b.store.MoveOutgoing(b.Context(), other, ms, store.Stuck)
		b.must(err)
		b.must(b.store.ReleaseLanes(b.Context(), other, nil))
		cut.Store(false)
		time.Sleep(3 * time.Second)
		close(gate)
		time.Sleep(time.Hour)
		for _, id := range b.sender.taken() {
			if id > "k0000" {
				b.Errorf("%s was published, although another relay had made k0001 stuck", id)
			}
		}
	})
}

// A person parks a message of a chunk that is being published, and discards it some
// seconds later. The relay has seen that it is parked.
func TestAParkedMessageThatIsThenDiscardedIsNotPublished(t *testing.T) {
	for _, key := range []string{"", "key"} {
		inBubble(t, func(b *bench) {
			r := b.relay()
			r.Batch = 1
			var step atomic.Int32
			var discarded atomic.Bool
			b.sender.set(nil, func(m *broker.Message) error {
				time.Sleep(time.Second) // a slow broker
				switch step.Add(1) {
				case 1:
					b.park(store.Pending, "k0009")
				case 5:
					tally, err := outbox.Admin{Store: b.store}.Discard(b.Context(), store.OutgoingQuery{IDs: []string{"k0009"}},
						outbox.Decision{By: "me", Reason: "wrong prices"})
					b.must(err)
					discarded.Store(tally.Changed == 1)
				}
				return nil
			})
			b.put(some(10, "k", key)...)
			stop := b.run(r)
			time.Sleep(time.Hour)
			if got := b.sender.taken(); !discarded.Load() || slices.Contains(got, "k0009") {
				b.Errorf("ordering key %q: k0009 was parked, and discarded: %v, four seconds before, and %q were published", key, discarded.Load(), got)
			}
			stop()
		})
	}
}

// A chunk takes longer than store.DecisionTime. A message of it is parked all along.
func TestAParkedMessageIsNotPublishedAfterDecisionTime(t *testing.T) {
	for _, key := range []string{"", "key"} {
		inBubble(t, func(b *bench) {
			r := b.relay()
			r.Batch, r.PublishTime = 1, 2*time.Minute
			var step atomic.Int32
			b.sender.set(nil, func(m *broker.Message) error {
				time.Sleep(time.Minute)
				if step.Add(1) == 1 {
					b.park(store.Pending, "k0015")
				}
				return nil
			})
			b.put(some(16, "k", key)...)
			stop := b.run(r)
			time.Sleep(time.Hour)
			if got := b.sender.taken(); slices.Contains(got, "k0015") {
				b.Errorf("ordering key %q: k0015 is parked (%d Stuck), and %q were published", key, len(b.rows(store.Stuck)), got)
			}
			stop()
		})
	}
}
