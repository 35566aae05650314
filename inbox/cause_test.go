package inbox_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// The context of a handler has the key of its message, which the messages that
// it puts name.
func TestHandlersKnowTheirKey(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		var mu sync.Mutex
		seen := make(map[string]once.Key)
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			seen[m.ID] = scope.Work[once.Key](inbox.For(ctx, m))
			return nil
		})
		b.publish("orders")
		stop := start(t, c)
		b.publish("orders", numbered(3)...)
		await(t, "3 handled", func() bool { return c.Stats.Handled.Load() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		for id, key := range seen {
			if key.Operation != c.Name || key.ID != id {
				t.Errorf("the work on %s is that of the key %v", id, key)
			}
		}
		if len(seen) != 3 {
			t.Errorf("%d messages were handled", len(seen))
		}
	})
}

// The record of a message has the key that put the message as its cause,
// whether the message is handled or parked.
func TestRecordsNameTheirCause(t *testing.T) {
	cause := once.Key{Scope: "tenant", Operation: "pay", ID: "1"}
	put := func(ids ...string) (ms []*broker.Message) {
		for _, id := range ids {
			m := message(id)
			m.Header = map[string]string{store.KeyHeader: cause.String()}
			ms = append(ms, m)
		}
		return ms
	}
	want := func(t *testing.T, b *bench, c *inbox.Consumer, status map[string]once.Status) {
		t.Helper()
		page, err := b.store.List(t.Context(), once.RecordQuery{Cause: cause.UUID(), Operation: c.Name})
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]once.Status)
		for _, rec := range page.Records {
			got[rec.Key.ID] = rec.Status
		}
		if !maps.Equal(got, status) {
			t.Errorf("the records that the key led to are %v, want %v", got, status)
		}
	}
	t.Run("in a transaction", func(t *testing.T) {
		onEach(t, func(t *testing.T, b *bench, sh shape) {
			c := sh.consumer(b, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
				switch m.ID {
				case "no":
					return once.ErrRejected
				case "never":
					return once.Permanent(errors.New("impossible"))
				}
				return nil
			})
			b.publish("orders")
			stop := start(t, c)
			b.publish("orders", append(put("a", "b", "no", "never"), message("nobody's"))...)
			await(t, "all handled", func() bool { return c.Stats.Handled.Load() == 4 && c.Stats.Parked.Load() == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			status := map[string]once.Status{"a": once.Done, "b": once.Done, "no": once.Done, "never": once.Parked}
			if sh.log && c.Key == nil { // it keeps a position, and no keys
				status = map[string]once.Status{}
			}
			want(t, b, c, status)
		})
	})
	t.Run("by Do", func(t *testing.T) {
		onBench(t, func(t *testing.T, b *bench) {
			c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
				if m.ID == "never" {
					return "", once.NotDone(once.Permanent(errors.New("impossible")))
				}
				return "sent", nil
			})
			b.publish("orders")
			stop := start(t, c)
			b.publish("orders", append(put("a", "never"), message("nobody's"))...)
			await(t, "all handled", func() bool { return c.Stats.Handled.Load() == 2 && c.Stats.Parked.Load() == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			want(t, b, c, map[string]once.Status{"a": once.Done, "never": once.Parked})
		})
	})
	t.Run("from the shelf", func(t *testing.T) {
		var mended atomic.Bool
		onBench(t, func(t *testing.T, b *bench) {
			c := shapes[0].consumer(b, func(context.Context, *memstore.Tx, *broker.Message) error {
				if !mended.Load() {
					return once.Permanent(errors.New("a mistake"))
				}
				return nil
			})
			b.publish("orders")
			stop := start(t, c)
			b.publish("orders", put("a")...)
			await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
			mended.Store(true)
			by := inbox.Decision{By: "test", Reason: "mended"}
			if _, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, by); err != nil {
				t.Fatal(err)
			}
			await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			want(t, b, c, map[string]once.Status{"a": once.Done})
		})
	})
}
