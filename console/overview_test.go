package console

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// still returns a console whose clock is the test's, and which samples only when
// somebody looks.
func still(t *testing.T, o Options) (*Console, *atomic.Int64) {
	t.Helper()
	c := open(t, o)
	c.Close()
	c.sampler.history = nil
	now := new(atomic.Int64)
	now.Store(1_800_000_000)
	c.now = func() time.Time { return time.Unix(now.Load(), 0) }
	return c, now
}

func TestTheOverviewShowsWhatNeedsAPerson(t *testing.T) {
	s := memstore.New(nil)
	c, now := still(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, lookToken)
	b.get("/").is(http.StatusOK).shows("Nothing needs a person now", "Unknown keys 0 none")

	unknown(t, s, once.Key{Operation: "pay", ID: "1"})
	settle(t, s, claim(t, s, once.Key{Operation: "mail", ID: "1"}, once.Key{}, time.Minute), once.Parked, "x", "", "")
	if err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "mail", Key: "1", Message: broker.Message{ID: "1", Topic: "t", Body: []byte("x")}, State: store.Parked}}); err != nil {
		t.Fatal(err)
	}
	b.get("/").shows("Nothing needs a person now") // the sample is not ten seconds old
	now.Add(int64(lookEvery / time.Second))
	b.get("/").is(http.StatusOK).shows("Something needs a person", "Unknown keys 1", "Parked keys 0", "Parked messages 1")
	if !strings.Contains(b.text, "in the last hour between 0 and 1, now 1") {
		t.Error("the line is not described")
	}
	b.follow("Unknown keys").is(http.StatusOK).shows("pay 1")
}

// The navigation of each page has the numbers of the latest sample, and asks no store
// for them.
func TestTheNavigationCountsWhatNeedsAPerson(t *testing.T) {
	s, ill := memstore.New(nil), &ailing{Store: memstore.New(nil)}
	for i := range 2 {
		unknown(t, s, once.Key{Operation: "pay", ID: fmt.Sprint(i)})
	}
	for i := range maxNavCount + 1 {
		settle(t, s, claim(t, s, once.Key{Operation: "mail", ID: fmt.Sprint(i)}, once.Key{}, time.Minute), once.Parked, "x", "", "")
	}
	c, now := still(t, Options{Stores: []Store{{Name: "shop", Store: s}, {Name: "ill", Store: ill}}})
	if got := (frame{}).Count("unknown"); got.Long != "" {
		t.Errorf("before anything is known, the navigation has %v", got)
	}
	b := as(t, c, lookToken)
	b.get("/").shows("Unknown 2 : 2", "Parked keys 99+ : 100", "Parked messages Outbox Consumers")
	unknown(t, s, once.Key{Operation: "pay", ID: "later"})
	ill.down = true
	b.get("/audit").shows("Unknown 2 : 2", "Parked keys 99+ : 100")
	now.Add(int64(lookEvery / time.Second))
	b.get("/audit").shows("Unknown 2 : 2") // which is how old the sample may be
	b.get("/")
	b.get("/audit").is(http.StatusOK).shows("Unknown 3+ : 3+", "Parked keys 99+ : 100+", "Parked messages Outbox") // the other store may have more
	visit(t, c).get("/").hides(`class="waits"`)
}

func TestCountsEndAtABound(t *testing.T) {
	s := memstore.New(nil)
	for i := range countUpTo + 5 {
		unknown(t, s, once.Key{Operation: "pay", ID: fmt.Sprint(i)})
	}
	c, _ := still(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	as(t, c, lookToken).get("/").shows("Unknown keys 1,000+")
}

func TestTheOverviewNamesAStoreThatFails(t *testing.T) {
	well, ill := memstore.New(nil), &ailing{Store: memstore.New(nil), down: true}
	c, now := still(t, Options{Stores: []Store{{Name: "ill", Store: ill}, {Name: "well", Store: well}}})
	b := as(t, c, lookToken)
	b.get("/").is(http.StatusOK).shows("Not every store answers", "The store does not answer: connection refused", "Unknown keys 0").hides(script)
	ill.down = false
	now.Add(10)
	b.get("/").shows("Nothing needs a person now").hides("does not answer")
}

func TestHistoryIsBounded(t *testing.T) {
	c, now := still(t, Options{})
	for range 800 {
		c.sample(t.Context(), true)
		now.Add(10)
	}
	if n := len(c.sample(t.Context(), true)[0]); n != 361 {
		t.Errorf("there are %d samples of an hour", n)
	}
	c.sampler.looked = time.Time{}
	before := now.Load()
	for range 30 {
		c.sample(t.Context(), false)
		now.Add(10)
	}
	recent := 0
	for _, s := range c.sampler.history[0] {
		if s.at.Unix() > before {
			recent++
		}
	}
	if recent > 5 {
		t.Errorf("there are %d samples in 5 minutes in which nobody looked", recent)
	}
}

func TestNoRelayIsReported(t *testing.T) {
	shop, _, _ := history(t)
	s := Store{Name: "shop", Store: shop}
	c, now := still(t, Options{Stores: []Store{s}})
	as(t, c, lookToken).get("/").shows("Messages to publish 1").hides("relay")
	leases := store.Leases{}
	c.o.Stores[0].Leases = func(context.Context) (store.Leases, error) { return leases, nil }
	now.Add(10)
	as(t, c, lookToken).get("/").shows("0 relays are alive", "no relay is alive to publish them")
	leases.Relays = 1
	now.Add(10)
	as(t, c, lookToken).get("/").shows("1 relay is alive").hides("no relay is alive")
}

// broken is a store with a fault: it panics where it should fail.
type broken struct{ *memstore.Store }

func (broken) Get(context.Context, once.Key) (once.Record, error) { panic("index out of range") }
func (broken) List(context.Context, once.RecordQuery) (once.RecordPage, error) {
	panic("index out of range")
}
func (broken) Shelved(context.Context, store.ShelfQuery) ([]store.Shelved, error) {
	panic("index out of range")
}

// The console is part of a program that does other work, too.
func TestAStoreThatPanicsEndsNothing(t *testing.T) {
	good := memstore.New(nil)
	k := once.Key{Operation: "pay", ID: "1"}
	unknown(t, good, k)
	var log logtest.Log
	c := open(t, Options{Stores: []Store{{Name: "good", Store: good}, {Name: "bad", Store: broken{memstore.New(nil)}}}, Operations: []string{"pay"},
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := as(t, c, decideToken)
	b.get("/").is(http.StatusOK).shows("Unknown keys 1", "the store panicked").hides("out of range")
	b.get("/find?q=1").is(http.StatusOK).shows("pay 1", "The store bad does not answer")
	b.get(c.keyLink(keyRef{"good", k})).is(http.StatusOK).shows("The store bad does not answer")
	b.get(c.keyLink(keyRef{"bad", k})).is(http.StatusServiceUnavailable).shows("The store bad does not answer")
	b.get("/messages?store=bad").is(http.StatusServiceUnavailable).shows("The store bad does not answer")
	b.get("/messages/message?store=good&consumer=c&id=1").is(http.StatusNotFound)
	delete(c.pages, "find")
	b.get("/find").is(http.StatusInternalServerError).shows("This page cannot be made")
	if !strings.Contains(log.String(), "console: a store panicked") || !strings.Contains(log.String(), "index out of range") {
		t.Errorf("logged %s", log.String())
	}
}

// deaf is a store that does not answer, and does not listen to contexts.
type deaf struct {
	*memstore.Store
	asked *atomic.Int64
	end   chan struct{}
}

func (s deaf) Get(context.Context, once.Key) (once.Record, error) {
	<-s.end
	return once.Record{}, nil
}

func (s deaf) List(context.Context, once.RecordQuery) (once.RecordPage, error) {
	s.asked.Add(1)
	<-s.end
	return once.RecordPage{}, nil
}

// All pages of the other stores are served, and the console ends.
func TestAStoreThatNeverAnswersIsNotWaitedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for time limits")
	}
	s := deaf{memstore.New(nil), new(atomic.Int64), make(chan struct{})}
	defer close(s.end)
	good := memstore.New(nil)
	k := once.Key{Operation: "pay", ID: "1"}
	unknown(t, good, k)
	c := open(t, Options{Stores: []Store{{Name: "good", Store: good}, {Name: "deaf", Store: s}}})
	b, other := as(t, c, decideToken), as(t, c, lookToken)
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		other.get("/unknown")
	}()
	b.get("/").is(http.StatusOK).shows("Unknown keys 1", "The store does not answer")
	<-listed
	other.is(http.StatusOK).shows("pay 1", "The store deaf does not answer")
	asked := s.asked.Load()
	c.sample(t.Context(), true)
	c.sampler.mu.Lock()
	for i := range c.sampler.history {
		c.sampler.history[i] = nil
	}
	c.sampler.mu.Unlock()
	if all := c.sample(t.Context(), true); all[1][0].err != errBusy || s.asked.Load() != asked {
		t.Errorf("%v after %d questions", all[1][0].err, s.asked.Load())
	}
	c.Close()
}

// A key that is parked with its message waits for the same decision.
func TestOnePoisonMessageCountsOnce(t *testing.T) {
	s := memstore.New(nil)
	settle(t, s, claim(t, s, once.Key{Operation: "billing", ID: "m-1"}, once.Key{}, time.Minute), once.Parked, "no such customer", "", "")
	if err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", Key: "m-1", Message: broker.Message{ID: "m-1", Topic: "orders"},
		State: store.Parked, Attempts: 10, Reason: "no such customer"}}); err != nil {
		t.Fatal(err)
	}
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	now := c.sample(t.Context(), true)[0]
	if got := now[len(now)-1].readings; got["shelved"].N != 1 || got["parked"].N != 0 {
		t.Errorf("one poison message is %d messages and %d keys", got["shelved"].N, got["parked"].N)
	}
	settle(t, s, claim(t, s, once.Key{Operation: "pay", ID: "m-1"}, once.Key{}, time.Minute), once.Parked, "nobody can be asked", "", "")
	if got := c.read1(t.Context(), c.o.Stores[0]).readings; got["shelved"].N != 1 || got["parked"].N != 1 {
		t.Errorf("with a parked key beside it: %d messages and %d keys", got["shelved"].N, got["parked"].N)
	}
}
