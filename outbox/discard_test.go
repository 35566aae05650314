//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var discards = outbox.Decision{By: "me", Reason: "wrong prices"}

// discard discards a message that waits in a state.
func (b *bench) discard(s store.Relayable, q store.OutgoingQuery) outbox.Tally {
	b.Helper()
	tally, err := outbox.Admin{Store: s}.DiscardWaiting(b.Context(), q, discards)
	b.must(err)
	return tally
}

// A message that waits, in whatever state, can be discarded while relays run. It is
// not published, and later messages of its ordering key are, in their order.
func TestAWaitingMessageCanBeDiscarded(t *testing.T) {
	inBubble(t, func(b *bench) {
		tx := b.store.Begin()
		b.must(b.events.PutAfter(b.Context(), tx, time.Hour, message("delayed", "delayed")))
		b.must(tx.Commit())
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "held0" {
				return errors.New("cannot be taken")
			}
			return nil
		})
		b.put(message("held0", "held"), message("held1", "held"), message("held2", "held"), message("pending0", "p"), message("pending1", "p"))
		if got := b.discard(b.store, store.OutgoingQuery{State: store.Pending, IDs: []string{"pending0"}}); got !=
			(outbox.Tally{Matched: 1, Changed: 1, Ordered: 1, Sending: 1}) {
			t.Errorf("a pending message: %+v", got)
		}
		stop := b.run(b.relay())
		b.until("the other is out", func() bool { return len(b.sender.taken()) == 1 })
		b.put(message("other", ""))
		b.until("held0 is held", func() bool { return slices.Contains(b.rows(store.Held), "held0") })
		if got := b.discard(b.store, store.OutgoingQuery{State: store.Held, IDs: []string{"held0"}}); got !=
			(outbox.Tally{Matched: 1, Changed: 1, Ordered: 1, Sending: 1}) {
			t.Errorf("a held message: %+v", got)
		}
		if got := b.discard(b.store, store.OutgoingQuery{State: store.Delayed}); got != (outbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
			t.Errorf("a delayed message: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		stop()
		for _, state := range []store.OutgoingState{store.Pending, store.Delayed, store.Held, store.Stuck} {
			if left := b.rows(state); len(left) > 0 {
				t.Errorf("still %v: %q", state, left)
			}
		}
		taken := b.sender.taken()
		slices.Sort(taken)
		if want := []string{"held1", "held2", "other", "pending1"}; !slices.Equal(taken, want) {
			t.Errorf("published: %q, want %q", taken, want)
		}
	})
}

// interrupted is a store in which something else happens before messages are
// changed.
type interrupted struct {
	*memstore.Store
	before func()
}

func (s interrupted) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	s.before()
	return s.Store.MoveOutgoing(ctx, relay, ms, to)
}

// Of two messages that somebody discards, a relay has published one meanwhile, and
// another person has parked one. Their decisions stand, and the tally says so.
func TestADiscardThatOthersForestalledLeavesTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.put(message("published", ""), message("parked", ""), message("mine", ""))
		s := interrupted{b.store, func() {
			ms, err := b.store.Outgoing(t.Context(), store.OutgoingQuery{IDs: []string{"published"}})
			b.must(err)
			_, err = b.store.Sent(t.Context(), [16]byte{}, ms, store.Delete)
			b.must(err)
			b.park(store.Pending, "parked")
		}}
		if got := b.discard(s, store.OutgoingQuery{}); got != (outbox.Tally{Matched: 3, Changed: 1, Sending: 1}) {
			t.Errorf("%+v", got)
		}
		stuck, err := b.store.Outgoing(t.Context(), store.OutgoingQuery{State: store.Stuck})
		if err != nil || len(stuck) != 1 || stuck[0].Message.ID != "parked" || !strings.HasPrefix(stuck[0].Reason, "parked by me") {
			t.Errorf("stuck: %+v, %v", stuck, err)
		}
	})
}

// A damaged message that waits can be discarded without its ID, and nothing else is.
func TestADamagedMessageCanBeDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.put(message("bad", "k"), message("after", "k"), message("other", ""))
		by := discards
		by.Unopened = true
		admin := outbox.Admin{Store: damagedStore{b.store, []string{"bad"}}}
		for _, by.DryRun = range []bool{true, false} {
			got, err := admin.DiscardWaiting(t.Context(), store.OutgoingQuery{}, by)
			if err != nil || got != (outbox.Tally{Matched: 1, Changed: 1, Ordered: 1, Sending: 1}) {
				t.Errorf("dry run %v: %+v, %v", by.DryRun, got, err)
			}
		}
		if left := b.rows(store.Pending); !slices.Equal(left, []string{"after", "other"}) {
			t.Errorf("left: %q", left)
		}
	})
}

// Neither published messages nor stuck ones wait, and nobody decides without a name.
func TestDiscardWaitingRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		admin := outbox.Admin{Store: b.store}
		for _, state := range []store.OutgoingState{store.Stuck, store.Published} {
			if _, err := admin.DiscardWaiting(t.Context(), store.OutgoingQuery{State: state}, discards); err == nil {
				t.Errorf("%v messages were discarded", state)
			}
		}
		if _, err := admin.DiscardWaiting(t.Context(), store.OutgoingQuery{}, outbox.Decision{Reason: "so"}); err == nil {
			t.Error("nobody has decided")
		}
	})
}
