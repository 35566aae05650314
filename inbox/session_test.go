package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

// Acks that fail do not occupy the window for ever.
func TestAcksThatFailDoNotStopTheConsumer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var fails atomic.Int64
		c := shapes[0].consumer(b, b.effect)
		c.Concurrency, c.Window = 1, 2
		c.Source = bent{Source: b.broker.Queue("orders"), ack: func([]broker.Delivery) error {
			if fails.Add(1) <= 2 {
				return context.DeadlineExceeded
			}
			return nil
		}}
		start(t, c)
		b.publish("orders", numbered(5)...)
		await(t, "five handled, although two acks timed out", func() bool { return c.Stats.Handled.Load() == 5 })
	})
}

// No message is parked because sessions break while the store fails.
func TestBreaksDuringAnOutageParkNothing(t *testing.T) {
	for _, sh := range []shape{shapes[0], shapes[1], shapes[2]} {
		t.Run(sh.name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var asked atomic.Int64
				var down atomic.Bool
				down.Store(true)
				st := &ill{Store: b.store}
				st.transact = func() error {
					asked.Add(1)
					if down.Load() {
						return errors.New("too many connections")
					}
					return nil
				}
				st.at = func(inner func() error) error {
					if err := st.transact(); err != nil {
						return err
					}
					return inner()
				}
				c := sh.consumer(b, b.effect)
				c.BatchSize, c.Retry.Attempts = 1, 2
				if c.Handler = inbox.Tx[mtx](st, b.effect); sh.name == "batch" {
					c.Handler = inbox.Batch[mtx](st, func(ctx context.Context, tx mtx, ms []*broker.Message) error { return b.effect(ctx, tx, ms[0]) })
				}
				start(t, c)
				b.publish("orders", message("m0"))
				for i := range int64(4) {
					was := asked.Load()
					await(t, fmt.Sprint("another try, after break ", i), func() bool { return asked.Load() > was || c.Stats.Parked.Load() > 0 })
					b.broker.Restart()
				}
				down.Store(false)
				await(t, "m0", func() bool { return c.Stats.Handled.Load()+c.Stats.Parked.Load() > 0 })
				if c.Stats.Parked.Load() > 0 {
					t.Errorf("its handler was called %d times: %s", b.calls["m0"], b.onTheShelf()[0].Reason)
				}
			})
		})
	}
}

// No message is parked because consumers are stopped in order.
func TestOrderlyStopsParkNothing(t *testing.T) {
	for _, sh := range []shape{shapes[0], shapes[1], shapes[2]} {
		t.Run(sh.name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				begun := make(chan struct{}, 100)
				c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
					begun <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
				c.StopTime, c.Retry.Attempts = time.Millisecond, 2
				b.publish("orders", message("m0"))
				for range 6 {
					stop := start(t, c)
					await(t, "begun", func() bool { return len(begun) > 0 || c.Stats.Parked.Load() > 0 })
					for len(begun) > 0 {
						<-begun
					}
					if err := stop(); err != nil {
						t.Fatal(err)
					}
				}
				if c.Stats.Parked.Load() > 0 {
					t.Error("it was stopped in order each time:", b.onTheShelf()[0].Reason)
				}
			})
		})
	}
}

func TestStopGivesBackWhatHasNotBegun(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		begun, returned := make(chan struct{}, 10), make(chan struct{})
		c := &inbox.Consumer{Name: "c", Source: listening{b.broker.Queue("orders"), returned}, Concurrency: 1, Window: 10, Stats: new(inbox.Stats),
			Handler: inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
				b.effect(ctx, tx, m)
				begun <- struct{}{}
				<-returned
				return ctx.Err()
			})}
		b.publish("orders", numbered(10)...)
		stop := start(t, c)
		<-begun
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if handled, left := c.Stats.Handled.Load(), len(b.broker.Messages("orders")); handled != 1 || left != 9 {
			t.Errorf("%d handled, %d left", handled, left)
		}
	})
}

// listening is a source that reports returned deliveries.
type listening struct {
	broker.Source
	returned chan struct{}
}

func (l listening) Open(ctx context.Context, window int) (broker.Session, error) {
	s, err := l.Source.Open(ctx, window)
	return listeningSession{s, l.returned}, err
}

type listeningSession struct {
	broker.Session
	returned chan struct{}
}

func (l listeningSession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	close(l.returned)
	return l.Session.Return(ctx, ds, after)
}

func TestStopTimeCancelsHandlers(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		begun := make(chan struct{})
		c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), StopTime: time.Millisecond, Stats: new(inbox.Stats),
			Handler: inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
				b.effect(ctx, tx, m)
				close(begun)
				<-ctx.Done()
				return ctx.Err()
			})}
		b.publish("orders", message("m0"))
		stop := start(t, c)
		<-begun
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if b.count("m0") != 0 || len(b.broker.Messages("orders")) != 1 {
			t.Error("what was cancelled is not back at the broker")
		}
	})
}
