//go:build linux

package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
)

// wrapper is middleware that lets nothing be sent at once.
type wrapper struct{ http.ResponseWriter }

// until waits until an expression is true in the page.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	if !eval[bool](b, `new Promise(function (yes) {
		var end = Date.now() + 60000;
		(function look() { if (`+expression+`) yes(true); else if (Date.now() > end) yes(false); else setTimeout(look, 50); })();
	})`) {
		b.t.Fatalf("it does not happen that %s:\n%s", what, b.text())
	}
}

// says is the expression that the page has a text.
func says(text string) string { return fmt.Sprintf("document.body.innerText.includes(%q)", text) }

// The overview shows what is new without being loaded again: by events, and by
// reading the page again where middleware holds events back.
func TestTheOverviewIsLive(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	held := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve.ServeHTTP(wrapper{w}, r) }))
	t.Cleanup(held.Close)
	byEvents, byReading := s.open(ann), open(t, held.URL)
	byReading.signIn(bob)
	for _, b := range []*tab{byEvents, byReading} {
		b.visit("/")
		b.sees("Unknown keys", "Duplicates prevented", "42")
		b.misses("Something needs a person") // the doctor may have looked already
		b.until("the page is the same all the time", "(window.mark = 'x') === 'x'")
	}
	s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
	for _, b := range []*tab{byEvents, byReading} {
		b.until("the news is shown", says("Something needs a person"))
		b.until("the doctor has looked", says("synchronous_commit is off"))
		if eval[string](b, "window.mark") != "x" {
			t.Error("the page was loaded again")
		}
		b.misses("does not answer")
	}
	fetched := `performance.getEntriesByType("resource").filter(function (e) { return e.name === location.href }).length`
	if n := eval[int](byEvents, fetched); n != 0 {
		t.Errorf("with events, the page is read %d times", n)
	}
	if n := eval[int](byReading, fetched); n == 0 {
		t.Error("without events, the page is not read again")
	}
	if said := byReading.allow(); !in(said, "501") {
		t.Errorf("the middleware held nothing back: %q", said)
	}
	for _, l := range looks {
		byEvents.looksAt(l)
		byEvents.fits()
		byEvents.picture("live-" + l.String())
		byEvents.accessible(axe)
	}

	byEvents.looksAt(look{375, 812, false})
	for _, b := range []*tab{byEvents, byReading} {
		b.until("the navigation has the number", `document.querySelector("[data-count=unknown]").textContent === "1: 1"`)
	}
	const places = `JSON.stringify(Array.from(document.querySelectorAll(".top a, .top input")).map(function (e) { var r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height] }))`
	before := eval[string](byEvents, places)
	byEvents.until("a link can have the focus", `document.querySelector(".board h3 a").focus() === undefined`)
	s.charge(once.Key{Operation: "pay/charge", ID: "order-4712"})
	byEvents.until("the news is shown", `document.querySelector(".count").textContent === "2"`)
	if !eval[bool](byEvents, `document.activeElement.matches(".board h3 a")`) {
		t.Error("an update takes the focus away")
	}
	byEvents.until("the navigation has the number", `document.querySelector("[data-count=unknown]").textContent === "2: 2"`)
	byEvents.until("nothing waits", `document.querySelectorAll("[data-count]").forEach(function (e) { e.replaceChildren() }) === undefined`)
	if without := eval[string](byEvents, places); without != before {
		t.Errorf("a number in the navigation moves it from %s to %s", without, before)
	}
	byEvents.visit("/audit")
	byEvents.follow(".who button")
}

// The other system is asked about a key, and about all that match. Nothing changes
// until somebody settles by the answers.
func TestAskAndSettle(t *testing.T) {
	axe, err := server.Axe(t.Context())
	onEach(t, func(t *testing.T, s *shop) {
		proof.Must(t, err)
		for _, scripts := range []bool{true, false} {
			of := func(i any) once.Key { return once.Key{Operation: "pay/charge", ID: fmt.Sprint("order-", scripts, i)} }
			one := s.charge(of(2))
			b := s.open(ann)
			if !scripts {
				b.withoutScripts()
			}
			b.visit(link(one))
			b.follow("#ask ~ form button")
			b.sees("it happened", "Nothing is changed yet")
			b.misses("ch_order")
			if got := s.status(one); got.Status != once.Unknown {
				t.Fatalf("the answer has made it %v", got.Status)
			}
			if scripts {
				for _, l := range looks {
					b.looksAt(l)
					b.fits()
					b.picture("asked-" + l.String())
					b.accessible(axe)
				}
				b.looksAt(look{1280, 800, false})
			}
			b.follow("button[aria-label^=Show]")
			b.sees("ch_order")
			b.fill("#reason", "the provider is back, ticket 88")
			b.follow("#settle ~ form button.main")
			b.sees("Settle 1 key by the answers?", "ticket 88", one.ID)
			b.follow("main form button.main")
			b.sees("1 settled")
			if got := s.status(one); got.Status != once.Done || !strings.Contains(got.Reason, "applied by ann: the provider is back, ticket 88") {
				t.Errorf("it is %v: %s", got.Status, got.Reason)
			}

			for i := range 4 {
				s.charge(of(i + 3))
			}
			s.charge(of("-x"))
			b.visit("/unknown?operation=pay%2Fcharge")
			b.follow("form[action$='/ask'] button")
			if scripts {
				b.until("all are asked about", says("5 of 5 asked about"))
				b.until("the form is there", `document.querySelector("#reason")`)
				b.picture("asked-all")
			} else {
				for !b.has("#reason") {
					b.visit(eval[string](b, "location.href"))
				}
			}
			b.sees("down for maintenance", "1 stays unknown")
			b.fill("#reason", "ticket 89")
			b.follow("#settle ~ form button.main")
			b.sees("Settle 4 keys by the answers?")
			if scripts {
				b.picture("asked-confirm")
				b.accessible(axe)
			}
			b.follow("main form button.danger")
			for i, want := range []once.Status{once.Absent, once.Done, once.Absent, once.Done} {
				if got := s.status(of(i + 3)); got.Status != want {
					t.Errorf("%d is %v, want %v", i+3, got.Status, want)
				}
			}
			b.visit("/unknown")
			b.sees("Asked lately", "order-"+fmt.Sprint(scripts)+"-x")
			b.visit("/audit")
			b.sees("ann", "asked about 5 unknown keys", "settled 4 keys", "ticket 89")
			k := of("-x")
			proof.Must(t, once.MarkNotDone(t.Context(), s.store, withKey(s.status(k), k), "the test ends"))
		}
	})
}

func withKey(r once.Record, k once.Key) once.Record {
	r.Key = k
	return r
}

// types presses a key that types a character, as a keyboard does.
func (b *tab) types(text string) {
	b.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		e := input.DispatchKeyEventParams{Type: kind, Key: text}
		if kind == input.DispatchKeyEventTypeKeyDown {
			e.Text = text
		}
		_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, e)
		b.must(err)
	}
}

// Lists can be gone through by keys, which the page lists. In a field they are
// letters.
func TestKeys(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	s.fill()
	b := s.open(ann)
	b.visit("/find?status=unknown")
	place := func() int {
		return eval[int](b, `Array.from(document.querySelectorAll("tbody a.row")).indexOf(document.activeElement)`)
	}
	for _, step := range []struct {
		key  string
		want int
	}{{kb.ArrowDown, -1}, {"j", 0}, {"j", 1}, {kb.ArrowDown, 2}, {kb.ArrowUp, 1}, {"k", 0}, {"k", 0}} {
		if len(step.key) == 1 && step.key[0] >= 'a' && step.key[0] <= 'z' {
			b.types(step.key)
		} else {
			b.keys(step.key)
		}
		if got := place(); got != step.want {
			t.Errorf("%q leads to row %d, want %d", step.key, got, step.want)
		}
	}
	b.types("?")
	if !eval[bool](b, `document.getElementById("keys").open`) {
		t.Fatal("? shows nothing")
	}
	b.sees("next and previous link of a list")
	b.picture("keys")
	b.accessible(axe)
	b.types("j")
	if place() >= 0 {
		t.Error("keys work under the list of keys")
	}
	b.keys(kb.Escape)
	if eval[bool](b, `document.getElementById("keys").open`) {
		t.Error("Escape does not close it")
	}
	b.click("[data-help]")
	if !eval[bool](b, `document.getElementById("keys").open`) {
		t.Error("the button shows nothing")
	}
	b.click("#keys button")
	b.slash()
	b.types("j")
	b.types("?")
	if got := eval[string](b, `document.getElementById("find").value`); got != "j?" {
		t.Errorf("the search box has %q", got)
	}
	b.visit("/")
	b.types("j")
	if !eval[bool](b, `document.activeElement.matches(".board h3 a")`) {
		t.Error("j does not reach the numbers of the overview")
	}
}
