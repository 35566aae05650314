//go:build linux

package console

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
)

// largeStore is a store that takes so long to list one key that a page of a search has
// no time for a second one, as if it had many.
type largeStore struct {
	once.Store
	once.Lister
}

func (s largeStore) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if q.Limit == 1000 { // a search
		q.Limit = 1
		select {
		case <-ctx.Done():
		case <-time.After(1600 * time.Millisecond):
		}
	}
	return s.Lister.List(ctx, q)
}

// Who looks for both charges of an order begins the search once: it goes on by itself,
// and keeps what it found, also without JavaScript.
func TestASearchGoesOnByItself(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	for _, k := range []once.Key{{Operation: "pay", Scope: "app", ID: "order-4711"}, {Operation: "pay", Scope: "web", ID: "order-4711"}} {
		s.charge(k)
	}
	lister, ok := once.As[once.Lister](s.store)
	if !ok {
		t.Fatal("the store does not list")
	}
	c, err := console.New(console.Options{Stores: []console.Store{{Name: "shop", Store: largeStore{s.store, lister}}},
		People: []console.Person{{Name: "ann", Role: console.Decide, Token: ann}}})
	proof.Must(t, err)
	t.Cleanup(c.Close)
	web := httptest.NewServer(c)
	t.Cleanup(web.Close)
	for _, scripts := range []bool{true, false} {
		b := open(t, web.URL)
		b.signIn(ann)
		if !scripts {
			b.withoutScripts()
		}
		b.visit("/find?q=4711&scan=1")
		testenv.Await(t, "the search ends", func() bool {
			text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText")) // fails on the way from one page to the next
			return err == nil && strings.Contains(text, "This is all: 2 keys were read")
		})
		b.sees("pay order-4711 of app", "pay order-4711 of web")
		b.fits()
		b.picture(fmt.Sprint("search-", scripts))
	}
	for _, scripts := range []bool{true, false} {
		b := open(t, web.URL)
		b.signIn(ann)
		stop := "[data-stop]"
		if !scripts {
			b.withoutScripts()
			stop = "noscript a"
		}
		b.visit("/find?q=4711&scan=1")
		// The page may be on its way to the next one, which takes as long as this one.
		_, err = chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).click()", stop)))
		b.must(err)
		testenv.Await(t, "the search stops", func() bool {
			stopped, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`location.search.includes("stop=1") && document.querySelector("a[rel=next]:not([data-further])") !== null`))
			return err == nil && stopped
		})
		b.sees("keys were read so far", "Search on")
		if b.has("noscript") {
			t.Error("a search that was stopped goes on")
		}
	}
}
