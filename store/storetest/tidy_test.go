package storetest_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// slowToRemove is a store on a busy machine, which takes its time to delete, and
// sometimes refuses.
type slowToRemove struct {
	*memstore.Store
	takes time.Duration
	calls *int
}

func (s slowToRemove) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	time.Sleep(s.takes)
	if *s.calls++; *s.calls%3 == 0 {
		return 0, once.ErrConflict
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return s.Store.RemoveOutgoing(ctx, relay, ms)
}

// A case that needs an empty outbox comes after one with 21,000 messages.
func TestACaseLeavesNothingToTheNextOne(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		s := slowToRemove{memstore.New(nil), 2 * time.Second, new(int)}
		h := inMemory(s.Store, &notes{}, func() once.TxStore[*memstore.Tx] { return s })
		ran := 0
		for _, c := range storetest.TxCases(t, h) {
			if c.Name != "outbox/largest-page" && c.Name != "outbox/oldest" {
				continue
			}
			ran++
			if err := c.Check(t.Context()); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
		if ran != 2 {
			t.Errorf("%d cases, not 2", ran)
		}
	})
}
