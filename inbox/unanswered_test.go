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

// inDoubt is a provider whose search is down, or does not know yet. A charge in
// doubt is made, and its caller does not hear of it.
type inDoubt struct {
	provider
	down  atomic.Bool
	asked atomic.Int64
}

func (p *inDoubt) charge(key once.Key, doubtful bool) (string, error) {
	p.provider.charge(key)
	if doubtful {
		return "", context.DeadlineExceeded
	}
	return "charge of " + key.ID, nil
}

func (p *inDoubt) search(ctx context.Context, key once.Key) (string, bool, error) {
	p.asked.Add(1)
	if p.down.Load() {
		return "", false, errors.New("the search is down")
	}
	return p.find(ctx, key)
}

// chargingConsumer returns a consumer that charges for each message, and may write a
// row then.
func chargingConsumer(b *bench, s once.TxStore[mtx], p *inDoubt, thenTx bool) *inbox.Consumer {
	op := &once.Operation[string]{Lookup: p.search}
	charge := func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
		return p.charge(key, strings.HasPrefix(m.ID, "doubt"))
	}
	c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
	if c.Handler = inbox.Do(s, op, charge); thenTx {
		op.Name = "charge"
		c.Handler = inbox.DoThenTx(s, op, charge, func(ctx context.Context, tx mtx, m *broker.Message, _ string) error { return b.effect(ctx, tx, m) })
	}
	return c
}

// A question without an answer is no attempt. While the system that is asked is
// down, no message that waits for it is parked, although all others get through; it
// is asked less and less often, and not much later than it is up again.
func TestNobodyIsToBlameForAQuestionWithoutAnAnswer(t *testing.T) {
	for _, thenTx := range []bool{false, true} {
		for _, lasts := range []time.Duration{time.Minute, 10 * time.Minute, 10 * time.Hour} {
			t.Run(fmt.Sprintf("then rows %v, for %v", thenTx, lasts), func(t *testing.T) {
				onQuietBench(t, func(t *testing.T, b *bench) {
					const doubts, others = 3, 20
					p := new(inDoubt)
					p.down.Store(true)
					c := chargingConsumer(b, b.store, p, thenTx)
					start(t, c)
					for i := range doubts {
						b.publish("orders", message(fmt.Sprint("doubt", i)))
					}
					for i := range others {
						b.publish("orders", message(fmt.Sprint("m", i)))
						time.Sleep(lasts / others)
					}
					asked := p.asked.Load() / doubts
					if handled, parked := c.Stats.Handled.Load(), c.Stats.Parked.Load(); handled != others || parked != 0 {
						t.Fatalf("%d of %d others are handled, and %d parked", handled, others, parked)
					}
					if most := 45 + int64(lasts/(5*time.Minute)); asked < 10 || asked > most {
						t.Errorf("asked %d times for each, and not 10 to %d times", asked, most)
					}
					p.down.Store(false)
					end := func() int64 { return c.Stats.Handled.Load() + c.Stats.Duplicates.Load() }
					if limit := min(lasts/2, 6*time.Minute); !sleepUntil(limit, func() bool { return end() == doubts+others }) {
						t.Errorf("%v after its end, %d of %d have ended; on the shelf: %+v", limit, end(), doubts+others, b.onTheShelf())
					}
					for id, n := range p.charges {
						if n != 1 {
							t.Errorf("%s was charged %d times", id, n)
						}
					}
				})
			})
		}
	}
}

// What keeps a question from counting is written until the store has it.
func TestAQuestionDoesNotCountIfItsEndIsWrittenLate(t *testing.T) {
	for _, thenTx := range []bool{false, true} {
		t.Run(fmt.Sprint("then rows ", thenTx), func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				p := new(inDoubt)
				p.down.Store(true)
				m, fails := b.machine(), false
				m.change = func(ctx context.Context, s store.Shelved) error {
					if begins := strings.HasPrefix(s.Reason, "begun, "); !begins && !fails {
						fails = true
						return errors.New("connection reset")
					} else if !begins {
						fails = false
					}
					return b.store.Change(ctx, s)
				}
				c := chargingConsumer(b, m, p, thenTx)
				c.Retry.Attempts = 2
				start(t, c)
				b.publish("orders", message("doubt"))
				time.Sleep(10 * time.Minute)
				p.down.Store(false)
				if !sleepUntil(5*time.Minute, func() bool { return len(b.onTheShelf()) == 0 }) || c.Stats.Parked.Load() > 0 {
					t.Errorf("%d parked; on the shelf: %+v", c.Stats.Parked.Load(), b.onTheShelf())
				}
			})
		})
	}
}

// A question that is never answered is given up in the end, so that a person hears
// of it.
func TestAQuestionIsGivenUpAfterTheLongestOutage(t *testing.T) {
	for _, thenTx := range []bool{false, true} {
		t.Run(fmt.Sprint("then rows ", thenTx), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				p := new(inDoubt)
				p.down.Store(true)
				c := chargingConsumer(b, b.store, p, thenTx)
				c.Retry.Outage = time.Hour
				start(t, c)
				b.publish("orders", message("doubt"))
				time.Sleep(time.Minute)
				b.publish("orders", message("m")) // which gets through
				time.Sleep(58 * time.Minute)
				if c.Stats.Parked.Load() > 0 {
					t.Error("it is parked too early")
				}
				if !sleepUntil(time.Hour, func() bool { return c.Stats.Parked.Load() == 1 }) {
					t.Errorf("it is not parked; on the shelf: %+v", b.onTheShelf())
				}
			})
		})
	}
}
