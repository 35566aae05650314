package console

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// What waits on the shelf is discarded with a reason, a count and an audit, except
// what a process is handling.
func TestWhatWaitsOnTheShelfIsDiscarded(t *testing.T) {
	s := memstore.New(nil)
	for _, id := range []string{"m0", "m1", "m2"} {
		shelve(t, s, store.Shelved{Consumer: "billing", Key: id, State: store.Waiting, Due: time.Hour, Reason: "down", Message: broker.Message{ID: id}})
	}
	claim(t, s, once.Key{Operation: "billing", ID: "m1"}, once.Key{}, time.Hour)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken)
	b.get("/messages?state=waiting").shows("filter by their consumer first").hides("Discard all")
	b.get("/messages?state=waiting&consumer=billing").follow("Discard all that match").shows("Discard waiting messages", "3 2", "not tried again")
	b.fill("/change", "reason", "").is(400).fill("/change", "reason", "test orders")
	b.shows("Will be discarded 2 messages, of 3", "Being handled 1").fill("/jobs")
	if j := ended(t, c, 1); j.tally != (tally{Matched: 3, Changed: 2, Taken: 1}) {
		t.Errorf("the job did %+v", j.tally)
	}
	b.get("/job?number=1").shows("discard waiting messages", "discarded 2 of 3", "Being handled 1")
	if ms := onShelfNow(t, s); countIn(t, s, store.Discarded) != 2 || ms["m1"].State != store.Waiting || !strings.Contains(ms["m0"].History, "discarded by dee: test orders") {
		t.Errorf("on the shelf are %+v", ms)
	}
	if got := c.trail.latest()[0]; !strings.Contains(got.What, "2 of 3 messages were discarded") || got.Reason != "test orders" {
		t.Errorf("the audit says %+v", got)
	}
	as(t, c, lookToken).get("/messages?state=waiting&consumer=billing").shows("m1").hides("Discard")
	as(t, c, lookToken).get("/change?of=messages&do=discard&state=waiting&consumer=billing").is(403)
}

// fasterRelay is a store whose relay is faster with one message.
type fasterRelay struct {
	*memstore.Store
	once   sync.Once
	faster string
}

func (s *fasterRelay) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	s.once.Do(func() {
		for _, m := range ms {
			if m.Message.ID == s.faster {
				_, _ = s.Store.Sent(ctx, [16]byte{}, []store.Outgoing{m}, store.Delete)
			}
		}
	})
	return s.Store.MoveOutgoing(ctx, relay, ms, to)
}

// What waits in the outbox is discarded, except what a relay was faster with.
func TestWhatWaitsInTheOutboxIsDiscarded(t *testing.T) {
	s := &fasterRelay{Store: memstore.New(nil)}
	put(t, s.Store, "", broker.Message{ID: "letter-1"}, broker.Message{ID: "letter-2"}, broker.Message{ID: "letter-3"}, broker.Message{ID: "invoice", Topic: "other"})
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/outbox?state=pending&topic=mail").follow("Discard all that match").shows("3 3", "may still be published")
	b.fill("/change", "reason", "wrong template").shows("Will be discarded 3 messages, of 3", "May still be published 3")
	s.faster = "letter-2"
	b.fill("/jobs")
	if j := ended(t, c, 1); j.tally.Matched != 3 || j.tally.Changed != 2 || j.tally.Moved != 1 {
		t.Errorf("the job did %+v", j.tally)
	}
	b.get("/job?number=1").shows("discarded 2 of 3", "Changed by others 1")
	if pending, stuck := outgoing(t, s, store.Pending), outgoing(t, s, store.Stuck); len(pending) != 1 || len(stuck) != 0 {
		t.Errorf("pending are %v, stuck %v", pending, stuck)
	}
	b.get("/outbox?state=pending").follow("invoice").follow("Discard…").fill("/change", "reason", "wrong").fill("/jobs")
	ended(t, c, 2)
	if pending := outgoing(t, s, store.Pending); len(pending) != 0 {
		t.Errorf("pending are %v", pending)
	}
}
