package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

var abruptEnds = map[string]func(){"panic": func() { panic("poison") }, "goexit": runtime.Goexit}

// A message for which a function of the user does not return is parked, and
// others are handled. What it panicked with is not on the shelf.
func TestAFunctionThatDoesNotReturnHasItsMessageParked(t *testing.T) {
	for name, end := range abruptEnds {
		for _, of := range []string{"Key", "Input", "OrderBy"} {
			t.Run(of+"/"+name, func(t *testing.T) {
				onBench(t, func(t *testing.T, b *bench) {
					c := shapes[0].consumer(b, b.effect)
					bad := func(m *broker.Message, method string) {
						if m.ID == "m3" && method == of {
							end()
						}
					}
					c.Key = func(m *broker.Message) (string, error) { bad(m, "Key"); return m.ID, nil }
					c.Input = func(m *broker.Message) []byte { bad(m, "Input"); return m.Body }
					c.OrderBy = func(m *broker.Message) string { bad(m, "OrderBy"); return m.OrderingKey }
					b.publish("orders", numbered(10)...)
					start(t, c)
					await(t, "one is parked, and the others are handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 9 })
					want := "once: Key, Input or OrderBy " + map[string]string{"panic": "panicked", "goexit": "ended its goroutine"}[name] + ", see the log"
					if found := b.onTheShelf(); len(found) != 1 || string(found[0].Message.Body) != "body of m3" || found[0].Reason != want {
						t.Errorf("on the shelf are %+v", found)
					}
				})
			})
		}
	}
}

// A message whose Lookup does not return waits for an answer, and others are
// handled.
func TestALookupThatDoesNotReturnHasItsMessageWait(t *testing.T) {
	for name, end := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var bad atomic.Bool
				bad.Store(true)
				op := &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
					if bad.Load() {
						end()
					}
					return "sent", true, nil
				}}
				c := &inbox.Consumer{Name: "mail", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats),
					Handler: inbox.Do(b.store, op, func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
						if m.ID == "m3" {
							return "", context.DeadlineExceeded // it may have happened
						}
						return "sent", nil
					})}
				b.publish("orders", numbered(10)...)
				start(t, c)
				await(t, "the others are handled", func() bool { return c.Stats.Handled.Load() == 9 })
				time.Sleep(time.Second)
				rec, err := b.store.Get(t.Context(), once.Key{Operation: "mail", ID: "m3"})
				if err != nil || rec.Status != once.Unknown || c.Stats.Parked.Load() > 0 {
					t.Errorf("the key is %v, %v, and %d are parked", rec.Status, err, c.Stats.Parked.Load())
				}
				bad.Store(false)
				await(t, "it has an answer", func() bool { return len(b.broker.Messages("orders")) == 0 })
				if rec, err := b.store.Get(t.Context(), rec.Key); err != nil || rec.Status != once.Done {
					t.Errorf("the key is %v, %v", rec.Status, err)
				}
			})
		})
	}
}

// A message without a key is parked again after a replay, whether Key panics or
// returns an error.
func TestAReplayedMessageWithoutAKeyIsParkedAgain(t *testing.T) {
	for name, end := range map[string]func() (string, error){
		"panics": func() (string, error) { panic("a bug") },
		"error":  func() (string, error) { return "", errors.New("no key") },
	} {
		t.Run(name, func(t *testing.T) {
			onLongBench(t, func(t *testing.T, b *bench) {
				var asked atomic.Int64
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: inbox.Retry{Attempts: 3}, Stats: new(inbox.Stats)}
				c.Key = func(*broker.Message) (string, error) {
					asked.Add(1)
					return end()
				}
				c.Handler = inbox.Tx(b.store, b.effect)
				start(t, c)
				b.publish("orders", message("poison"))
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
				_, err := inbox.Admin{Store: b.store}.Replay(t.Context(), store.ShelfQuery{Consumer: "billing"}, discards)
				must(t, err)
				before := asked.Load()
				time.Sleep(time.Hour)
				if n := asked.Load() - before; n > 10 || c.Stats.Parked.Load() != 2 {
					t.Errorf("asked %d times, parked %d times", n, c.Stats.Parked.Load())
				}
			})
		})
	}
}
