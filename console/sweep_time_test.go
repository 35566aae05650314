//go:build go1.25

package console

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
)

// A store that does not find ids in time is read key by key, also if it does not listen
// to its context.
func TestAStoreThatFindsIDsForTooLongIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSweeping(t, "order-1", "y")
		end := make(chan struct{})
		s.find = func(context.Context) ([]once.Key, error) {
			<-end
			return nil, nil
		}
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
		b := as(t, c, lookToken)
		begun := time.Now()
		b.get("/find?q=rder-1&scan=1").is(http.StatusOK).shows("order-1", "This is all: 2 keys were read.")
		if took := time.Since(begun); took != sweepTime {
			t.Errorf("it took %v", took)
		}
		close(end)
		c.Close()
	})
}

// Each search reads a whole table, so few are made at once, however many people look.
func TestFewStoresFindIDsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSweeping(t, "order-1", "y")
		var now, most atomic.Int64
		s.find = func(context.Context) ([]once.Key, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return nil, nil
		}
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
		begun := time.Now()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() { as(t, c, lookToken).get("/find?q=lost&scan=1").shows("all keys were searched") })
		}
		all.Wait()
		if took := time.Since(begun); most.Load() != sweepAtOnce || took != 3*time.Second {
			t.Errorf("%d at once, in %v", most.Load(), took)
		}
		c.Close()
	})
}
