package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// A batch has copies of a message, and after them one that fails, of the same
// ordering key. It does not lose its delay, and is not tried more often than it may,
// because the copies are tried again.
func TestACopyInABatchDoesNotHaveALaterMessageTriedAgain(t *testing.T) {
	t.Run("delay", func(t *testing.T) {
		onLongBench(t, func(t *testing.T, b *bench) {
			c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), BatchSize: 16}
			begun := time.Now()
			c.Handler = inbox.Batch(b.store, func(_ context.Context, _ mtx, ms []*broker.Message) error {
				for _, m := range ms {
					if m.ID == "m1" && time.Since(begun) < 9*time.Second {
						return inbox.Failed(m, once.RetryAfter(10*time.Second, errors.New("not now")))
					}
				}
				return nil
			})
			b.publish("orders", ordered("m0", "k"), ordered("m0", "k"), ordered("m0", "k"), ordered("m1", "k"))
			start(t, c)
			await(t, "all are handled", func() bool { return c.Stats.Handled.Load() == 2 })
			if n := c.Stats.Failed.Load(); n != 1 {
				t.Errorf("m1 asked for 10 s, and failed %d times before that", n)
			}
		})
	})
	t.Run("attempts", func(t *testing.T) {
		onLongBench(t, func(t *testing.T, b *bench) {
			c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), BatchSize: 16, Retry: retryAtOnce(1)}
			c.Handler = inbox.Batch(b.store, func(_ context.Context, _ mtx, ms []*broker.Message) error {
				for _, m := range ms {
					if m.ID == "m1" {
						return inbox.Failed(m, errors.New("no"))
					}
				}
				return nil
			})
			b.publish("orders", ordered("m0", "k"), ordered("m0", "k"), ordered("m0", "k"), ordered("m0", "k"), ordered("m1", "k"))
			start(t, c)
			await(t, "m1 is parked", func() bool { return c.Stats.Parked.Load() == 1 })
			if n := c.Stats.Failed.Load(); n != 1 {
				t.Errorf("m1 may fail once, and failed %d times", n)
			}
		})
	})
}
