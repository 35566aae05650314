//go:build go1.25

package inbox

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// slowCounts is a store in which copies of a message come between the read, the
// claim and the settlement of a count.
type slowCounts struct{ *memstore.Store }

func (s slowCounts) Get(ctx context.Context, key once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, key)
	time.Sleep(time.Millisecond)
	return rec, err
}

func (s slowCounts) Settle(ctx context.Context, set once.Settlement) error {
	time.Sleep(time.Millisecond)
	return s.Store.Settle(ctx, set)
}

// Copies of a message excuse attempts side by side, and none of them takes back an
// excuse of another, or counts one twice.
func TestCopiesExcuseSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const copies, each = 8, 5
		st := memstore.New(nil)
		h := &effects[int]{env: newCounting(st, nil)}
		h.store = slowCounts{st}
		var all sync.WaitGroup
		items := make([]*item, copies)
		for i := range items {
			items[i] = uncounted("m0")
			all.Go(func() {
				for n := range each {
					time.Sleep(time.Duration(i*n) * 300 * time.Microsecond)
					items[i].excuses.add++
					h.excuse(t.Context(), items[i])
				}
			})
		}
		all.Wait()
		rec, err := st.Get(t.Context(), items[0].countKey)
		if err != nil {
			t.Fatal(err)
		}
		sum, begun := excusedIn(rec)
		for _, it := range items { // what could not be written remains
			sum += it.excuses.add
		}
		if sum != copies*each || begun {
			t.Errorf("%d of %d excuses count, and one has begun: %v", sum, copies*each, begun)
		}
	})
}
