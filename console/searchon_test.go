package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// flaky is a store that lists a key at a time, slowly by the console's clock, and that
// at times does not list, or does not read.
type flaky struct {
	oneByOne
	list, read *atomic.Bool // it fails
}

var errRefused = errors.New("connection refused")

func (s flaky) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if s.list.Load() && q.Limit == 1000 {
		return once.RecordPage{}, errRefused
	}
	return s.oneByOne.List(ctx, q)
}

func (s flaky) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if s.read.Load() {
		return once.Record{}, errRefused
	}
	return s.oneByOne.Get(ctx, k)
}

// unsearchable is a store whose ids are found only by reading its keys.
type unsearchable struct {
	once.Store
	once.Lister
}

// flakyStores returns a console of stores with keys, which a search reads one with
// each page.
func flakyStores(t *testing.T, keys map[string][]once.Key) (*Console, map[string]flaky) {
	t.Helper()
	var now atomic.Int64
	all := make(map[string]flaky)
	var stores []Store
	for _, name := range []string{"one", "two"} {
		if keys[name] == nil {
			continue
		}
		of := memstore.New(nil)
		for _, k := range keys[name] {
			unknown(t, of, k)
		}
		all[name] = flaky{oneByOne{of, of, func() { now.Add(int64(time.Minute)) }}, new(atomic.Bool), new(atomic.Bool)}
		stores = append(stores, Store{Name: name, Store: all[name]})
	}
	c := open(t, Options{Stores: stores})
	c.Close() // nothing else learns names
	c.now = func() time.Time { return time.Unix(0, now.Load()) }
	return c, all
}

func payments(ids ...string) (keys []once.Key) {
	for _, id := range ids {
		keys = append(keys, once.Key{Operation: "pay", ID: id})
	}
	return keys
}

// A search that goes on by itself does not forget on its last page that a store did
// not answer before: whoever believes that an id is nowhere pays a second time.
func TestASearchRemembersWhatFailed(t *testing.T) {
	c, stores := flakyStores(t, map[string][]once.Key{"one": payments("a", "b", "c"), "two": payments("d", "e")})
	b := as(t, c, lookToken)
	b.get("/find?q=lost&scan=1").shows("1 keys were read so far")
	stores["one"].list.Store(true)
	b.follow("Search on").shows("The store one does not answer")
	stores["one"].list.Store(false)
	for strings.Contains(b.text, "data-further") {
		b.follow("Search on")
	}
	b.shows("not all of the store one was searched", "nothing that was read has this id").hides("Nothing here has this id", "all 3 keys")
	b.follow("Begin the search again").hides("not all of the store")
	for strings.Contains(b.text, "data-further") {
		b.follow("Search on")
	}
	b.shows("Nothing here has this id: all 5 keys were read").hides("not all of the store")

	stores["two"].list.Store(true)
	b.get("/find?q=lost&scan=1")
	for strings.Contains(b.text, "data-further") {
		b.follow("Search on")
	}
	b.shows("The store two does not answer", "nothing that was read has this id").hides("Nothing here has this id", "not all of the store two")
	for _, bad := range []string{"missed=three", "missed=%3Cscript%3E", "read=99999999999999"} {
		b.get("/find?q=lost&scan=1&" + bad).shows("The link is damaged")
	}
}

// What was found is not lost if its store does not answer once.
func TestASearchKeepsWhatCannotBeReadForAWhile(t *testing.T) {
	c, stores := flakyStores(t, map[string][]once.Key{"one": payments("x-1", "x-2", "x-3", "x-4")})
	b := as(t, c, lookToken)
	b.get("/find?q=x-&scan=1").shows("pay x-", "The search goes on")
	stores["one"].read.Store(true)
	b.follow("Search on").shows("The store one does not answer", "The search goes on")
	stores["one"].read.Store(false)
	for strings.Contains(b.text, "data-further") {
		b.follow("Search on")
	}
	if n := strings.Count(b.text, `class="row"`); n != 4 {
		t.Errorf("%d of 4 keys are there at the end:\n%s", n, b.page.content())
	}
}

// Two stores may have the same key, and each has its own record of it.
func TestASearchFindsTheSameKeyInEachStore(t *testing.T) {
	c, _ := flakyStores(t, map[string][]once.Key{"one": payments("order-1", "a", "b", "c", "d"), "two": payments("order-1", "order-2")})
	b := as(t, c, lookToken)
	b.get("/find?q=rder-1&scan=1")
	for strings.Contains(b.text, "data-further") {
		b.follow("Search on")
	}
	if n := strings.Count(b.text, `class="row"`); n != 2 {
		t.Errorf("%d keys are found, want one in each store:\n%s", n, b.page.content())
	}
}

// The last page of many says nothing about those before it that is not so.
func TestTheLastPageOfASearchDeniesNoOther(t *testing.T) {
	of := memstore.New(nil)
	for i := range onPage {
		unknown(t, of, once.Key{Operation: "pay", ID: fmt.Sprint("order-", i)})
	}
	for i := range 100 {
		unknown(t, of, once.Key{Operation: "pay", ID: fmt.Sprint("y", i)})
	}
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: unsearchable{of, of}}}})
	c.Close()
	b := as(t, c, lookToken)
	b.get("/find?q=order&scan=1").is(200)
	for strings.Contains(b.text, `rel="next"`) {
		b.follow("Next page")
	} // the last of all keys, in the order of the store, is none of these
	b.shows("Nothing further has this id", "all 150 keys were read").hides("Nothing here has this id", `class="row"`)

	c, stores := flakyStores(t, map[string][]once.Key{"one": payments("a", "b")})
	shelve(t, stores["one"].Store.(*memstore.Store), store.Shelved{Consumer: "billing", State: store.Parked, Message: broker.Message{ID: "m-1"}})
	c.o.Stores[0].Store = struct {
		flaky
		store.Shelf
	}{stores["one"], stores["one"].Store.(*memstore.Store)}
	b = as(t, c, lookToken)
	b.get("/find?q=m-1&scan=1").shows("Messages with this id")
	for strings.Contains(b.text, `rel="next"`) {
		b.follow("Search on")
	}
	b.shows("Nothing further has this id").hides("Nothing here has this id")
}
