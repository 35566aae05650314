//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
)

// bareStore has no shelf, and a log.
type bareStore struct {
	once.Store
	options *once.Options
}

func (s bareStore) Options() *once.Options { return s.options }

// Without a shelf, the message becomes a dead letter.
func TestAQuestionIsGivenUpWithoutAShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		log := new(logtest.Log)
		s := bareStore{b.store, once.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}.Ready()}
		p := new(inDoubt)
		p.down.Store(true)
		op := &once.Operation[string]{Lookup: p.search}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats),
			Retry: inbox.Retry{Outage: time.Hour}}
		c.Handler = inbox.Do(s, op, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
			return p.charge(key, strings.HasPrefix(m.ID, "doubt"))
		})
		start(t, c)
		b.publish("orders", message("doubt"))
		time.Sleep(2 * time.Hour)
		asked, logged := p.asked.Load(), len(log.String())
		for i := range 24 {
			b.publish("orders", message(fmt.Sprint("m", i)))
			time.Sleep(time.Hour)
		}
		if c.Stats.Parked.Load() == 0 {
			t.Errorf("a day after Outage (1h): not parked, asked %d times more, dead letters %d, and the log since then: %q",
				p.asked.Load()-asked, len(b.broker.Messages("orders.dead")), log.String()[logged:])
		}
	})
}

// skewed is a store whose clock is ahead by a time.
type skewed struct {
	*machine
	by time.Duration
}

func (s skewed) Get(ctx context.Context, k once.Key) (once.Record, error) {
	rec, err := s.machine.Get(ctx, k)
	rec.Created, rec.Updated = rec.Created.Add(s.by), rec.Updated.Add(s.by)
	return rec, err
}

// How long an outcome has been unknown does not depend on whose clock is right.
func TestQuestionsHaveOneClock(t *testing.T) {
	for _, by := range []time.Duration{0, 10 * time.Minute, -2 * time.Hour} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				p := new(inDoubt)
				p.down.Store(true)
				c := chargingConsumer(b, skewed{b.machine(), by}, p, false)
				c.Retry.Outage = time.Hour
				start(t, c)
				b.publish("orders", message("doubt"))
				for i := range 10 {
					b.publish("orders", message(fmt.Sprint("m", i)))
					time.Sleep(time.Minute)
				}
				if asked := p.asked.Load(); asked > 45 || c.Stats.Parked.Load() > 0 {
					t.Errorf("in 10 minutes: asked %d times, %d parked", asked, c.Stats.Parked.Load())
				}
			})
		})
	}
}

// deafStore refuses settlements.
type deafStore struct {
	*machine
	settle func(once.Settlement) error
}

func (s deafStore) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.settle(set); err != nil {
		return err
	}
	return s.machine.Settle(ctx, set)
}

// An attempt at a step of which the end cannot be recorded is an attempt, also on the
// shelf: its effect was made.
func TestAStepThatCannotBeRecordedUsesUpItsAttempts(t *testing.T) {
	for _, thenTx := range []bool{false, true} {
		t.Run(fmt.Sprint("then rows ", thenTx), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				var charges atomic.Int64
				s := deafStore{b.machine(), func(set once.Settlement) error {
					if set.Status == once.Done && strings.Contains(set.Key.ID, "poison") && (!thenTx || strings.Contains(set.Key.Operation, "/")) {
						return errors.New("ERROR: invalid byte sequence (SQLSTATE 22021)")
					}
					return nil
				}}
				op := &once.Operation[string]{OnUnknown: once.Resend}
				charge := func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
					if m.ID == "poison" {
						charges.Add(1)
					}
					return "\xff", nil
				}
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
				if c.Handler = inbox.Do(s, op, charge); thenTx {
					op.Name = "charge"
					c.Handler = inbox.DoThenTx(s, op, charge, func(ctx context.Context, tx mtx, m *broker.Message, _ string) error { return b.effect(ctx, tx, m) })
				}
				start(t, c)
				b.publish("orders", message("poison"))
				for i := range 200 {
					b.publish("orders", message(fmt.Sprint("m", i)))
					time.Sleep(time.Minute)
				}
				if c.Stats.Parked.Load() == 0 {
					t.Errorf("not parked, charged %d times, %d others handled, shelf %+v", charges.Load(), c.Stats.Handled.Load(), b.onTheShelf())
				}
			})
		})
	}
}

// A consumer that was stopped for longer than Retry.Outage asks for a while before it
// gives up.
func TestAQuestionIsNotGivenUpAtTheStart(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		p := new(inDoubt)
		p.down.Store(true)
		c := chargingConsumer(b, b.store, p, false)
		stop := start(t, c)
		b.publish("orders", message("doubt"))
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * 24 * time.Hour)
		c = chargingConsumer(b, b.store, p, false)
		start(t, c)
		for i := range 10 {
			b.publish("orders", message(fmt.Sprint("m", i)))
			time.Sleep(30 * time.Second)
		}
		if c.Stats.Parked.Load() != 0 {
			t.Errorf("parked within 5 minutes of a consumer that had not run for 4 days, asked %d times: %+v", p.asked.Load(), b.onTheShelf(store.Parked))
		}
	})
}

// A message that may end its process is tried alone. Its question has no answer for
// half a minute, and others are handled.
func TestAQuestionDoesNotKeepOthersWaiting(t *testing.T) {
	for _, unended := range []bool{false, true} {
		t.Run(fmt.Sprint("unended ", unended), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				key := once.Key{Operation: "billing", ID: "doubt"}
				_, err := b.store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second) // its process has died
				m := store.Shelved{Consumer: "billing", Key: "doubt", Message: *message("doubt"), Origin: "orders@0", State: store.Waiting, Reason: "it failed", Attempts: 9}
				if unended {
					m.Reason = "begun, and not ended by process 1 on host (worker x). Before that: it failed"
				}
				m.Message.Topic, m.Message.Body = "orders", nil
				if err := b.store.Shelve(t.Context(), []store.Shelved{m}); err != nil {
					t.Fatal(err)
				}
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
				var asked atomic.Int64
				op := &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
					asked.Add(1)
					time.Sleep(30 * time.Second)
					return "", false, context.DeadlineExceeded
				}}
				slowest := time.Duration(0)
				var mu sync.Mutex
				c.Handler = inbox.Do(b.store, op, func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					slowest = max(slowest, time.Since(m.Time))
					return "", nil
				})
				start(t, c)
				for i := range 600 {
					b.publish("orders", message(fmt.Sprint("m", i)))
					time.Sleep(time.Second)
				}
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				if slowest > 35*time.Second || c.Stats.Handled.Load() < 590 {
					t.Errorf("%d of 600 others are handled, the slowest after %v; asked %d times; shelf %d", c.Stats.Handled.Load(), slowest, asked.Load(), len(b.onTheShelf()))
				}
			})
		})
	}
}

// What is in doubt does not keep others of its topic from being tried.
func TestQuestionsDoNotKeepATopicDown(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		p := new(inDoubt)
		p.down.Store(true)
		var down atomic.Bool
		down.Store(true)
		var mu sync.Mutex
		op := &once.Operation[string]{Lookup: p.search}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
		c.Handler = inbox.Do(b.store, op, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if down.Load() && strings.HasPrefix(m.ID, "doubt") {
				p.provider.charge(key)
				return "", context.DeadlineExceeded
			}
			if down.Load() {
				return "", once.NotDone(inbox.Unavailable(errors.New("connection refused")))
			}
			p.provider.charge(key)
			return "", nil
		})
		start(t, c)
		for i := range 60 {
			b.publish("orders", message(fmt.Sprint("doubt", i)))
		}
		time.Sleep(30 * time.Minute)
		for i := range 20 {
			b.publish("orders", message(fmt.Sprint("m", i)))
		}
		time.Sleep(30 * time.Minute)
		down.Store(false) // charges are possible again; the search is still down
		time.Sleep(4 * time.Hour)
		if c.Stats.Handled.Load() < 20 {
			t.Errorf("handled %d of 20, 4 hours after charges are possible", c.Stats.Handled.Load())
		}
	})
}
