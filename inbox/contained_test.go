package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// abrupt is a source of which each method does not return when it is called
// first.
type abrupt struct {
	broker.Source
	end  func()
	mu   *sync.Mutex
	seen map[string]bool
}

func newAbrupt(s broker.Source, end func()) abrupt {
	return abrupt{s, end, new(sync.Mutex), make(map[string]bool)}
}

func (a abrupt) first(method string) {
	a.mu.Lock()
	seen := a.seen[method]
	a.seen[method] = true
	a.mu.Unlock()
	if !seen {
		a.end()
	}
}

func (a abrupt) Open(ctx context.Context, window int) (broker.Session, error) {
	a.first("Open")
	s, err := a.Source.Open(ctx, window)
	return abruptSession{s, a}, err
}

func (a abrupt) Location(context.Context) (map[string]string, error) {
	a.first("Location")
	return nil, nil
}

func (a abrupt) RedeliveryHorizon(context.Context) (time.Duration, error) {
	a.first("RedeliveryHorizon")
	return time.Hour, nil
}

type abruptSession struct {
	broker.Session
	of abrupt
}

func (s abruptSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, limit)
	if len(ds) > 0 {
		s.of.first("Receive")
	}
	return ds, err
}

func (s abruptSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	s.of.first("Ack")
	return s.Session.Ack(ctx, ds)
}

func (s abruptSession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	s.of.first("Return")
	return s.Session.Return(ctx, ds, after)
}

func (s abruptSession) Close(ctx context.Context) error {
	defer s.of.first("Close") // otherwise the broker waits for it
	return s.Session.Close(ctx)
}

var abruptEnds = map[string]func(){"panic": func() { panic("poison") }, "goexit": runtime.Goexit}

// A source that panics, or ends its goroutine, is one that fails: the consumer
// opens another session, and handles each message once.
func TestASourceThatDoesNotReturnEndsNoConsumer(t *testing.T) {
	for name, end := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				c := shapes[0].consumer(b, b.effect)
				source := newAbrupt(c.Source, end)
				c.Source = source
				b.publish("orders", numbered(20)...)
				stop := start(t, c)
				await(t, "all are handled", func() bool { return c.Stats.Handled.Load() == 20 })
				await(t, "all are acknowledged", func() bool { return len(b.broker.Messages("orders")) == 0 })
				if err := stop(); err != nil {
					t.Error(err)
				}
				for i := range 20 {
					if n := b.count(fmt.Sprint("m", i)); n != 1 {
						t.Errorf("m%d has %d effects", i, n)
					}
				}
				for _, method := range []string{"Open", "Location", "RedeliveryHorizon", "Receive", "Ack", "Close"} {
					if !source.seen[method] {
						t.Errorf("%s was not called", method)
					}
				}
			})
		})
	}
}

// A message for which a function of the user ends its goroutine is parked, and
// others are handled.
func TestAFunctionThatEndsItsGoroutineHasItsMessageParked(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, b.effect)
		c.Key = func(m *broker.Message) (string, error) {
			if m.ID == "m3" {
				runtime.Goexit()
			}
			return m.ID, nil
		}
		b.publish("orders", numbered(10)...)
		start(t, c)
		await(t, "one is parked, and the others are handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 9 })
		if found := b.onTheShelf(); len(found) != 1 || string(found[0].Message.Body) != "body of m3" || found[0].Reason != "once: Key, Input or OrderBy ended its goroutine" {
			t.Errorf("on the shelf are %+v", found)
		}
	})
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
