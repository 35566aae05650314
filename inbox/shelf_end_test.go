//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// blindStore cannot always read the shelf.
type blindStore struct {
	*machine
	shelved func(store.ShelfQuery) error
}

func (s blindStore) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if err := s.shelved(q); err != nil {
		return nil, err
	}
	return s.machine.Shelved(ctx, q)
}

// The row is parked, its reply is lost, and the question about it fails, too.
func TestAParkedRowHasItsKeyParked(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		m := b.machine()
		failed := false
		m.change = func(ctx context.Context, s store.Shelved) error {
			err := b.store.Change(ctx, s)
			if s.State == store.Parked && err == nil {
				return errors.New("connection reset")
			}
			return err
		}
		s := blindStore{m, func(q store.ShelfQuery) error {
			if len(q.States) == 1 && q.States[0] == store.Parked && !failed {
				failed = true
				return errors.New("connection reset")
			}
			return nil
		}}
		calls := 0
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), Retry: inbox.Retry{Attempts: 2, Outage: -1}}
		c.Handler = inbox.Tx(s, func(context.Context, mtx, *broker.Message) error { calls++; return once.Permanent(errors.New("bug")) })
		start(t, c)
		b.putOnShelf("m0")
		time.Sleep(time.Hour)
		rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: "m0"})
		if err != nil {
			t.Fatal(err)
		}
		if rec.Status != once.Parked || c.Stats.Parked.Load() != 1 || !strings.Contains(m.log.String(), "inbox: parked") {
			t.Errorf("the row is %+v, its key %v, Stats.Parked %d; log:\n%s", b.onTheShelf(store.Parked), rec.Status, c.Stats.Parked.Load(), m.log.String())
		}
		b.publish("orders", message("m0")) // a copy by the producer
		time.Sleep(time.Minute)
		if calls != 1 {
			t.Errorf("the handler of a parked message was called for a copy")
		}
	})
}

// A renewal had no reply, and the shelf cannot be read for a second.
func TestAQuestionDoesNotCountIfTheRowsVersionIsNotKnown(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		m := b.machine()
		var handling, blind atomic.Bool
		m.change = func(ctx context.Context, s store.Shelved) error {
			err := b.store.Change(ctx, s)
			if handling.Load() && strings.HasPrefix(s.Reason, "begun") {
				return errors.New("connection reset")
			}
			return err
		}
		s := blindStore{m, func(q store.ShelfQuery) error {
			if len(q.IDs) > 0 && len(q.States) == 1 && blind.Load() { // shelfWorker.find
				return errors.New("connection reset")
			}
			return nil
		}}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), Retry: inbox.Retry{Attempts: 2}}
		p := new(provider)
		op := &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
			handling.Store(true)
			time.Sleep(3 * time.Second) // one renewal
			handling.Store(false)
			blind.Store(true)
			time.AfterFunc(1500*time.Millisecond, func() { blind.Store(false) })
			return "", false, errors.New("the search is down")
		}}
		c.Handler = inbox.Do(s, op, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
			p.charge(key)
			if m.ID == "m0" {
				return "", context.DeadlineExceeded
			}
			return "", nil
		})
		start(t, c)
		b.publish("orders", message("m0"))
		for i := range 60 {
			b.publish("orders", message(fmt.Sprint("n", i)))
			time.Sleep(10 * time.Second)
		}
		if c.Stats.Parked.Load() != 0 {
			t.Errorf("parked for questions: %+v", b.onTheShelf(store.Parked))
		}
	})
}

// The last attempt succeeds, and the shelf cannot be written until its lease is over.
func TestADoneMessageIsNotParked(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		m := b.machine()
		var cut atomic.Bool
		m.change = func(ctx context.Context, s store.Shelved) error {
			if cut.Load() {
				return errors.New("connection reset")
			}
			return b.store.Change(ctx, s)
		}
		c := m.consumer(b, true, func(context.Context) error {
			cut.Store(true)
			time.AfterFunc(12*time.Second, func() { cut.Store(false) })
			return nil
		})
		c.Retry.Attempts = 1
		start(t, c)
		b.putOnShelf("m0")
		time.Sleep(5 * time.Minute)
		rec, _ := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: "m0"})
		if n := len(b.onTheShelf(store.Parked)); n > 0 {
			t.Errorf("the key is %v, %d effects, and parked: %+v", rec.Status, b.count("m0"), b.onTheShelf())
		}
	})
}

// Run is told to stop while the shelf cannot be written.
func TestTheEndOfAnAttemptDoesNotDelayTheStop(t *testing.T) {
	for _, long := range []bool{false, true} {
		t.Run(fmt.Sprint("long ", long), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				m := b.machine()
				var handling, cut atomic.Bool
				m.change = func(ctx context.Context, s store.Shelved) error {
					if cut.Load() || long && handling.Load() && strings.HasPrefix(s.Reason, "begun") {
						return errors.New("connection refused")
					}
					return b.store.Change(ctx, s)
				}
				release := make(chan struct{}, 1)
				n := 0
				c := m.consumer(b, true, func(context.Context) error {
					if n++; long && n == 1 { // renewing a lease does not work
						handling.Store(true)
						time.Sleep(9 * time.Second)
						handling.Store(false)
						return nil
					}
					<-release
					cut.Store(true)
					return nil
				})
				stop := start(t, c)
				if long {
					b.putOnShelf("first")
					time.Sleep(time.Minute)
				}
				b.putOnShelf("m0")
				time.Sleep(5 * time.Second)
				begun := time.Now()
				time.AfterFunc(time.Second, func() { release <- struct{}{} })
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun) - time.Second; took > 3*time.Second {
					t.Errorf("stopping took %v after the last handler returned", took)
				}
			})
		})
	}
}
