package demo

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

func newLasting(t *testing.T) (s *side, enough context.CancelFunc) {
	t.Helper()
	until, enough := context.WithCancel(t.Context())
	s, err := newSide(t.Context(), With, t.TempDir(), Options{Seed: 1, Workers: 2, Lasting: &Lasting{Enough: until}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, enough
}

// What is forgotten stays in the report, and nowhere else.
func TestForgottenOrdersStayCounted(t *testing.T) {
	s, _ := newLasting(t)
	for _, o := range []Order{{ID: "order-1", Customer: "a", Cents: 100}, {ID: "order-2", Customer: "b", Cents: 200}} {
		s.placed = append(s.placed, placed{o, everything})
		s.acked[o.ID] = true
		s.provider.charge("", o)
		s.provider.charge("", o)
		if _, err := s.db.Exec(`INSERT INTO orders (id, customer, cents) VALUES (?, ?, ?)`, o.ID, o.Customer, o.Cents); err != nil {
			t.Fatal(err)
		}
	}
	before, tallies, err := s.count(t.Context())
	if err != nil || before.Orders != 2 || before.DuplicateCharges != 2 || before.Lost != 2 {
		t.Fatalf("%+v, %v", before, err)
	}
	if err := s.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, then, err := s.count(t.Context())
	if err != nil || after != before || !maps.EqualFunc(tallies, then, func(a, b *Tally) bool { return *a == *b }) {
		t.Errorf("%+v, %v, want %+v", after, err, before)
	}
	rows := 0
	if err := s.db.QueryRow(`SELECT count(*) FROM orders`).Scan(&rows); err != nil || rows+len(s.placed)+len(s.acked) != 0 {
		t.Errorf("%d rows, %d placed, %d confirmed are left: %v", rows, len(s.placed), len(s.acked), err)
	}
	for _, made := range s.provider.charges {
		made[0].at = made[0].at.Add(-2 * keptFor)
	}
	s.provider.forget()
	if len(s.provider.charges) > 0 {
		t.Errorf("the provider remembers %v", s.provider.charges)
	}
}

// A run that lasts places orders until it is to end, and then none.
func TestLastsUntilItIsEnough(t *testing.T) {
	s, enough := newLasting(t)
	for range 3 * len(Windows) {
		if len(s.schedule.next().orders) == 0 {
			t.Fatal("it ends by itself")
		}
	}
	enough()
	if p := s.schedule.next(); len(p.orders) > 0 {
		t.Errorf("it goes on with %s", p.name)
	}
}

// Parked letters that nobody looks at do not become ever more.
func TestOldestLettersAreGivenUp(t *testing.T) {
	s, _ := newLasting(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []store.Shelved
	for range mostParked + 3 {
		all = append(all, store.Shelved{Consumer: "letters", State: store.Parked, Message: broker.Message{ID: "m" + string(rune('a'+len(all)/26)) + string(rune('a'+len(all)%26)), Topic: topic}})
	}
	if err := s.store.Shelve(ctx, all); err != nil {
		t.Fatal(err)
	}
	if err := s.discardOldest(ctx); err != nil {
		t.Fatal(err)
	}
	left, err := inbox.Admin{Store: s.store}.List(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 1000})
	if err != nil || len(left) != mostParked || left[0].Message.ID != all[3].Message.ID {
		t.Errorf("%d are parked, %v", len(left), err)
	}
}

// The sources that are asked for their lag are those of the registered consumers.
func TestTheLagOfTheShopIsThatOfItsQueues(t *testing.T) {
	s, _ := newLasting(t)
	if errs := s.events.publish.Publish(t.Context(), []*broker.Message{{ID: "m-1", Topic: topic, Body: []byte("{}")}}); errs != nil {
		t.Fatal(errs)
	}
	all := s.events.sources()
	for i, name := range consumers {
		if lag, err := all[i].(broker.Lagger).Lag(t.Context()); err != nil || lag.Messages != 1 || all[i].Name() != (queue{consumer: name}).Name() {
			t.Errorf("%s at %s: %+v, %v", name, all[i].Name(), lag, err)
		}
	}
	s.events.interrupt()
	if lag, err := all[0].(broker.Lagger).Lag(t.Context()); err == nil {
		t.Errorf("the broker is down, and says %+v", lag)
	}
}
