package inbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store/memstore"
)

// The work on a message knows its key: that is what messages name that it puts.
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
