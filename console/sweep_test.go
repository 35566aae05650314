package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// sweeping is a store that counts how often it is asked for ids, and for records one
// after the other.
type sweeping struct {
	*memstore.Store
	asked, listed *atomic.Int64
	find          func(ctx context.Context) ([]once.Key, error) // nil: what the store finds
}

func newSweeping(t *testing.T, ids ...string) sweeping {
	t.Helper()
	s := sweeping{Store: memstore.New(nil), asked: new(atomic.Int64), listed: new(atomic.Int64)}
	for i, id := range ids {
		unknown(t, s.Store, once.Key{Operation: "pay", Scope: fmt.Sprint("tenant-", i%2), ID: id})
	}
	return s
}

func (s sweeping) FindIDs(ctx context.Context, part string, limit int) ([]once.Key, error) {
	s.asked.Add(1)
	if s.find != nil {
		return s.find(ctx)
	}
	return s.Store.FindIDs(ctx, part, limit)
}

func (s sweeping) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if q.Limit == 1000 {
		s.listed.Add(1)
	}
	return s.Store.List(ctx, q)
}

// many returns n ids that contain what.
func many(what string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(what, "-", i))
	}
	return ids
}

// A store that finds ids itself is asked once, and nobody reads its keys one by one.
func TestAStoreFindsIDsItself(t *testing.T) {
	s := newSweeping(t, append(many("y", 20), "x-order-1", "order-11", "order-1-refund")...)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	c.Close() // which samples the store no more
	s.listed.Store(0)
	b := as(t, c, lookToken)
	b.get("/find?q=order-1&scan=1").is(http.StatusOK).shows("x-order-1", "order-11", "order-1-refund", "This is all.").hides("were read", "y-1", "Search on")
	if s.asked.Load() != 1 || s.listed.Load() != 0 {
		t.Errorf("the store was asked for ids %d times, and for records %d times", s.asked.Load(), s.listed.Load())
	}
	b.get("/find?q=order-1&scan=1&scope=tenant-1").shows("order-11").hides("x-order-1", "order-1-refund")
	b.get("/find?q=order-1&scan=1&status=done").hides("order-11").shows("Nothing here has this id: all keys were searched")
	b.get("/find?q=order-2&scan=1").shows("Nothing here has this id: all keys were searched")

	// A search that begins by reading is ended by asking, and has what was found before.
	s.listed.Store(0)
	next := c.link("/find", "q", "order-1", "scan", "1", "after", cursor{after: once.Key{Operation: "pay", ID: "y-1"}}.String())
	b.get(next).shows("x-order-1", "order-11", "order-1-refund", "This is all.")
	if s.listed.Load() != 0 {
		t.Errorf("the store was asked for records %d times", s.listed.Load())
	}
	b.get("/find?q=order-1&scan=1&sweep=1&swept=elsewhere").is(http.StatusBadRequest)
}

// Of several stores, those that find ids themselves are asked once, with what they found
// on all pages, while the search goes on in the others.
func TestASearchGoesOnInStoresThatFindNoIDs(t *testing.T) {
	others, _ := flakyStores(t, map[string][]once.Key{"one": payments("order-5", "a", "b"), "two": payments("c")})
	s := newSweeping(t, "order-1", "order-51")
	c := open(t, Options{Stores: append(others.o.Stores, Store{Name: "three", Store: s})})
	c.Close()
	s.listed.Store(0)
	c.now = others.now
	b := as(t, c, lookToken)
	b.get("/find?q=order-&scan=1").shows("order-51", "The search goes on")
	for n := 0; strings.Contains(b.text, "data-further"); n++ {
		b.shows("order-51")
		b.follow("Search on").is(http.StatusOK)
	}
	b.shows("order-1", "order-51", "order-5", "This is all.")
	if n := strings.Count(b.text, `class="row"`); n != 3 {
		t.Errorf("%d keys are found, want 3:\n%s", n, b.page.content())
	}
	if s.asked.Load() != 1 || s.listed.Load() != 0 {
		t.Errorf("the store was asked for ids %d times, and for records %d times", s.asked.Load(), s.listed.Load())
	}
}

// Where a store cannot find ids, or finds too many for a page, its keys are read.
func TestKeysAreReadWhereAStoreFindsNoIDs(t *testing.T) {
	for name, find := range map[string]func(context.Context) ([]once.Key, error){
		"fails":  func(context.Context) ([]once.Key, error) { return nil, errRefused },
		"panics": func(context.Context) ([]once.Key, error) { panic("a bug") },
		"finds too many": func(context.Context) ([]once.Key, error) {
			return payments(many("order", maxSwept)...), nil
		},
		"finds more than a page": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ids := []string{"order-1"}
			if find == nil {
				ids = many("order-1", onPage+10)
			}
			s := newSweeping(t, append(ids, "y")...)
			s.find = find
			c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
			c.Close()
			s.listed.Store(0)
			b := as(t, c, lookToken)
			q := "/find?q=order-1&scan=1"
			if name == "finds too many" { // of which none is on the page
				q += "&scope=tenant-0"
			}
			b.get(q).is(http.StatusOK)
			found := strings.Count(b.text, `class="row"`)
			for strings.Contains(b.text, `rel="next"`) {
				b.follow("Next page").is(http.StatusOK)
				found += strings.Count(b.text, `class="row"`)
			}
			if found != len(ids) {
				t.Errorf("%d of %d keys were found", found, len(ids))
			}
			if s.asked.Load() != 1 || s.listed.Load() == 0 {
				t.Errorf("the store was asked for ids %d times, and for records %d times", s.asked.Load(), s.listed.Load())
			}
		})
	}
}
