package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// seen is an Observer that stores what it is told about each message.
type seen struct {
	mu    sync.Mutex
	began []inbox.Handling
	ended map[string][]inbox.HandlingResult // by message
}

type seenKey struct{}

func (s *seen) BeginHandling(ctx context.Context, h inbox.Handling) (context.Context, func([]inbox.HandlingResult)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = append(s.began, h)
	return context.WithValue(ctx, seenKey{}, s), func(became []inbox.HandlingResult) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, m := range h.Messages {
			if s.ended == nil {
				s.ended = make(map[string][]inbox.HandlingResult)
			}
			s.ended[m.ID] = append(s.ended[m.ID], became[i])
		}
	}
}

// of returns the results of a message, in order.
func (s *seen) of(id string) (outcomes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ended[id] {
		outcomes = append(outcomes, e.Outcome)
	}
	return outcomes
}

func (s *seen) count(outcome string) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.ended {
		for _, e := range all {
			if e.Outcome == outcome {
				n++
			}
		}
	}
	return n
}

func TestAnObserverSeesWhatBecomesOfEachMessage(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		s := new(seen)
		var outside atomic.Int64
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			if ctx.Value(seenKey{}) != s {
				outside.Add(1)
			}
			switch {
			case m.ID == "poison":
				return errors.New("poisonous")
			case m.ID == "refused":
				return inbox.Duplicate(nil)
			}
			return b.effect(ctx, tx, m)
		})
		c.Observer = s
		start(t, c)
		b.publish("orders", append(numbered(20), message("poison"), message("refused"))...)
		await(t, "all are dealt with", func() bool {
			return s.count(observe.Handled) == 20 && s.count(observe.Parked) == 1 && s.count(observe.Prevented) == 1
		})
		b.publish("orders", message("m0"))
		again := observe.Duplicate
		if sh.name == "log" || sh.name == "log, batch" { // positions do not know what a producer wrote twice
			again = observe.Handled
		}
		await(t, "the copy is dealt with", func() bool { return len(s.of("m0")) == 2 })
		if got := s.of("m0"); got[1] != again {
			t.Errorf("of a copy it saw %q, want %q behind the first", got, again)
		}
		for outcome, stat := range map[string]*atomic.Int64{observe.Handled: &c.Stats.Handled, observe.Duplicate: &c.Stats.Duplicates,
			observe.Prevented: &c.Stats.Prevented, observe.Parked: &c.Stats.Parked} {
			if got := s.count(outcome); got != stat.Load() {
				t.Errorf("it saw %d as %s, and %d are counted", got, outcome, stat.Load())
			}
		}
		poison := s.of("poison")
		if len(poison) < 2 || slices.ContainsFunc(poison[:len(poison)-1], func(o string) bool { return o != observe.Retried && o != observe.Shelved }) {
			t.Errorf("of the one that failed it saw %q", poison)
		}
		if n := outside.Load(); n > 0 {
			t.Errorf("%d handlers ran outside the context of the observer", n)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.ended["poison"] {
			if e.Reason == "" {
				t.Errorf("it does not say why it is %s", e.Outcome)
			}
		}
		shelved := false
		for _, h := range s.began {
			together := sh.name != "tx" && !h.Shelved
			if h.Consumer != "billing" || h.Source == "" || h.Together != together || !together && len(h.Messages) != 1 ||
				h.Shelved && h.Messages[0].ID != "poison" {
				t.Errorf("it saw %+v", h)
			}
			shelved = shelved || h.Shelved
		}
		if shelved != sh.log { // where what fails is tried on the shelf
			t.Errorf("it saw attempts from the shelf: %v, want %v", shelved, sh.log)
		}
	})
}

// Do handlers get the context of the Observer, and their calls of once belong
// to it.
func TestAnObserverSeesEffects(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		s := new(seen)
		op := &once.Operation[string]{OnUnknown: once.Resend}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Observer: s, Stats: new(inbox.Stats),
			Handler: inbox.Do(b.store, op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
				if ctx.Value(seenKey{}) != s {
					t.Error("the handler runs outside the context of the observer")
				}
				return m.ID, nil
			})}
		start(t, c)
		b.publish("orders", message("1"), message("1"))
		await(t, "both are dealt with", func() bool { return len(s.of("1")) == 2 })
		got := s.of("1")
		slices.Sort(got) // either may end first
		if want := []string{observe.Duplicate, observe.Handled}; !slices.Equal(got, want) {
			t.Errorf("it saw %q", got)
		}
	})
}

// broken is an Observer that violates every rule.
type broken struct{ turn atomic.Int64 }

func (o *broken) BeginHandling(ctx context.Context, h inbox.Handling) (context.Context, func([]inbox.HandlingResult)) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for i := range h.Messages {
		h.Messages[i] = nil
	}
	switch o.turn.Add(1) % 5 {
	case 0:
		panic("at the beginning")
	case 1:
		return gone, func([]inbox.HandlingResult) { panic("at the end") }
	case 2:
		return nil, nil
	case 3:
		return gone, nil
	}
	return context.Background(), func(became []inbox.HandlingResult) { clear(became) }
}

func TestABrokenObserverLosesAndDoublesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			if ctx.Err() != nil {
				t.Error("the context of the observer has ended, and the handler's with it")
			}
			return b.effect(ctx, tx, m)
		})
		observer := new(broken)
		c.Observer = observer
		const n = 300
		start(t, c)
		b.publish("orders", numbered(n)...)
		await(t, "all are handled", func() bool { return c.Stats.Handled.Load() >= n })
		b.allOnce(t, n)
		if c.Stats.Handled.Load() != n || c.Stats.Failed.Load() > 0 || c.Stats.Duplicates.Load() > 0 {
			t.Errorf("handled %d, failed %d, duplicates %d", c.Stats.Handled.Load(), c.Stats.Failed.Load(), c.Stats.Duplicates.Load())
		}
		if tries := observer.turn.Load(); tries > n {
			t.Errorf("it took %d attempts to handle %d messages", tries, n)
		}
	})
}

// If a handler ends its goroutine, the span of its message ends.
func TestAnObserverSeesTheEndOfAGoroutine(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		s := new(seen)
		var calls atomic.Int64
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Observer: s, Retry: retryAtOnce(9),
			Handler: inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
				if calls.Add(1) == 1 {
					runtime.Goexit()
				}
				return nil
			})}
		start(t, c)
		b.publish("orders", message("1"))
		await(t, "it is handled in the end", func() bool { return s.count(observe.Handled) == 1 })
		if got := fmt.Sprint(s.of("1")); got != "[retried handled]" {
			t.Errorf("it saw %s", got)
		}
	})
}

type shelvedKey struct{}

// attempt is an Observer that tells handlers whether a message comes from the
// shelf.
type attempt struct{ *seen }

func (a attempt) BeginHandling(ctx context.Context, h inbox.Handling) (context.Context, func([]inbox.HandlingResult)) {
	ctx, ended := a.seen.BeginHandling(ctx, h)
	return context.WithValue(ctx, shelvedKey{}, h.Shelved), ended
}

// A message from the shelf whose handler returns a rejection is handled or
// prevented. It is no duplicate.
func TestAnObserverSeesARejectionFromTheShelf(t *testing.T) {
	t.Parallel()
	for outcome, no := range map[string]error{observe.Handled: once.ErrRejected, observe.Prevented: inbox.Duplicate(nil)} {
		t.Run(outcome, func(t *testing.T) {
			onEach(t, func(t *testing.T, b *bench, sh shape) {
				if !sh.log {
					return // nothing is tried on the shelf
				}
				s := new(seen)
				c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
					if ctx.Value(shelvedKey{}) == true {
						b.add(tx, m.ID)
						return no
					}
					return errors.New("not yet")
				})
				c.Observer = attempt{s}
				start(t, c)
				b.publish("orders", message("1"))
				await(t, "it is dealt with", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return slices.ContainsFunc(s.began, func(h inbox.Handling) bool { return h.Shelved }) && len(s.ended["1"]) == len(s.began)
				})
				if got := s.of("1"); got[len(got)-1] != outcome {
					t.Errorf("it saw %q, want %s in the end", got, outcome)
				}
				st := c.Stats
				if st.Handled.Load()+st.Prevented.Load() != 1 || st.Duplicates.Load() != 0 || s.count(observe.Prevented) != st.Prevented.Load() {
					t.Errorf("handled %d, prevented %d, duplicates %d", st.Handled.Load(), st.Prevented.Load(), st.Duplicates.Load())
				}
				if b.count("1") != 0 {
					t.Error("what it wrote is committed")
				}
				waiting, err := b.store.Shelved(t.Context(), store.ShelfQuery{Consumer: "billing", States: []store.ShelfState{store.Waiting, store.Parked}})
				if err != nil || len(waiting) > 0 {
					t.Errorf("%d are left on the shelf: %v", len(waiting), err)
				}
			})
		})
	}
}
