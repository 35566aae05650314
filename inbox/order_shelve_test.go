package inbox_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// reluctant is a store that refuses to shelve a message once.
type reluctant struct {
	*memstore.Store
	mu      sync.Mutex
	refuses string
}

func (s *reluctant) Shelve(ctx context.Context, ms []store.Shelved) error {
	s.mu.Lock()
	refuses := ms[0].Message.ID == s.refuses
	if refuses {
		s.refuses = ""
	}
	s.mu.Unlock()
	if refuses {
		return errors.New("connection refused")
	}
	return s.Store.Shelve(ctx, ms)
}

// Two messages of a batch have to wait on the shelf for an earlier one of their
// ordering key, and the first of them does not get there.
func TestMessagesOfABatchGoToTheShelfInOrder(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		st := &reluctant{Store: b.store, refuses: "m1"}
		var order []string // handlers of one ordering key run one at a time
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), BatchSize: 16}
		c.Handler = inbox.Batch(st, func(_ context.Context, _ mtx, ms []*broker.Message) error {
			for _, m := range ms {
				if m.ID == "m0" && len(order) == 0 {
					order = append(order, "m0 fails")
					return inbox.Failed(m, once.RetryAfter(10*time.Second, errors.New("not now")))
				}
				order = append(order, m.ID)
			}
			return nil
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"))
		await(t, "m0 waits", func() bool { return c.Stats.Shelved.Load() == 1 })
		b.publish("orders", ordered("m1", "k"), ordered("m2", "k"))
		await(t, "all are handled", func() bool { return c.Stats.Handled.Load() == 3 })
		if want := []string{"m0 fails", "m0", "m1", "m2"}; !slices.Equal(order, want) {
			t.Errorf("handled in the order %q, want %q", order, want)
		}
	})
}

// A message of a batch is too old to be told from new, and is parked. Later ones of
// its ordering key wait for it.
func TestMessagesOfABatchWaitForOneThatIsTooOld(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Handler: batch(b, b.effect), Stats: new(inbox.Stats), BatchSize: 16}
		b.publish("orders", message("first"))
		stop := start(t, c)
		await(t, "the consumer is known", func() bool { return c.Stats.Handled.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		old := ordered("m0", "k")
		old.Time = time.Now().Add(-31 * 24 * time.Hour)
		b.publish("orders", old, ordered("m1", "k"), ordered("m2", "other"))
		start(t, c)
		await(t, "all are settled", func() bool { return c.Stats.Parked.Load()+c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 4 })
		if b.count("m1") != 0 || b.count("m2") != 1 {
			t.Errorf("m1, which is behind a parked message, was handled %d times, and m2, which is not, %d times", b.count("m1"), b.count("m2"))
		}
	})
}
