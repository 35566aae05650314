//go:build linux

package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/store"
)

// pages are all pages that can be opened, by a name for their pictures.
func pages(s *shop) map[string]string {
	return map[string]string{
		"overview": "/", "find": "/find", "list": "/find?all=1", "found": "/find?q=order-4711", "nothing": "/find?q=there-is-none",
		"key-unknown": link(once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: "order-4711"}),
		"key-done":    link(once.Key{Operation: "order", ID: "order-4705"}),
		"key-parked":  link(once.Key{Operation: "mail", ID: "order-4703"}),
		"key-absent":  link(once.Key{Operation: "mail", ID: "none"}),
		"audit":       "/audit", "missing": "/nowhere",
		"unknown": "/unknown", "parked": "/parked", "messages": "/messages", "outbox": "/outbox", "consumers": "/consumers", "jobs": "/jobs", "reconcile": "/reconcile",
	}
}

// Pages fit every screen in both themes, and whoever needs help to read them gets it.
func TestLooks(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	s.fill()
	s.failures()
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	out := s.open("")
	out.visit("/")
	b := s.open(chief)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	s.orderWith("order-4720", map[string]string{"traceparent": "00-" + trace + "-c0ffee6b71692033-01"})
	for _, l := range looks {
		out.looksAt(l)
		out.fits()
		out.picture("sign-in-" + l.String())
		out.accessible(axe)
		b.looksAt(l)
		for name, path := range pages(s) {
			b.visit(path)
			b.fits()
			b.picture(name + "-" + l.String())
			b.accessible(axe)
		}
		b.visit("/find?q=" + trace)
		b.fits()
		b.picture("trace-" + l.String())
		b.accessible(axe)
	}
}

// hostile are texts that break what shows them without care.
var hostile = []string{
	`<script>window.hacked = 1</script>`, `"><img src=x onerror="window.hacked=1">`, `javascript:window.hacked=1`, `{{.}}`, `</title><script>window.hacked=1</script>`,
	"\u202eevil\u2066", "zero\u200bwidth", "pаypal", "line\nbreak\ttab\x1b[31m", strings.Repeat("W", 200), strings.Repeat("مرحبا", 20),
}

// What others chose as a name runs nothing, and is no wider than the screen.
func TestHostileNames(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	var keys []once.Key
	for _, text := range hostile {
		k := once.Key{Scope: text, Operation: "pay", ID: text}
		if err := k.Validate(); err != nil {
			k = once.Key{Operation: "pay", ID: strings.ToValidUTF8(strings.Map(func(r rune) rune {
				if r < ' ' {
					return -1
				}
				return r
			}, text), "")}
		}
		keys = append(keys, s.bring(k, once.Unknown, text))
	}
	failures := []string{"/messages"}
	shelf, _ := once.As[store.Shelf](s.store)
	for i, text := range hostile {
		failures = append(failures, "/messages?alike="+alike.ID(alike.Text(text)))
		proof.Must(t, shelf.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked, Reason: text, Message: broker.Message{ID: fmt.Sprint("m", i), Topic: "t"}}}))
	}
	b := s.open(ann)
	for _, l := range []look{looks[0], looks[2]} {
		b.looksAt(l)
		paths := append([]string{"/find?all=1", "/find?q=" + strings.ReplaceAll(hostile[0], " ", "+")}, failures...)
		for _, k := range keys {
			paths = append(paths, link(k))
		}
		for i, path := range paths {
			b.visit(path)
			b.fits()
			if i == 0 {
				b.picture("hostile-" + l.String())
				b.accessible(axe)
			}
			if eval[bool](b, "'hacked' in window") || b.has("main script, main img") {
				t.Errorf("%s runs what it shows", path)
			}
			if all := b.text(); strings.ContainsAny(all, "\u202e\u2066\u200b\x1b") {
				t.Errorf("%s has invisible characters", path)
			}
		}
	}
}

// Whoever has no mouse finds, reads and settles a key.
func TestKeyboardOnly(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	k := s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
	b := open(t, s.at)
	b.visit("/")
	b.keys(ann) // the field has the focus
	b.load(press(kb.Enter))
	b.slash()
	b.keys("order-4711")
	b.load(press(kb.Enter))
	b.sees("order-4711")
	b.keys(kb.Escape)
	reach(b, "a.row")
	b.load(press(kb.Enter))
	b.sees("Timeline")
	reach(b, "input[name=choice]")
	b.keys(kb.ArrowDown)
	reach(b, "#settle ~ form #reason")
	b.keys("asked the provider, ticket 88")
	b.load(press(kb.Enter))
	b.sees("asked the provider, ticket 88")
	reach(b, "main form button")
	b.load(press(kb.Enter))
	if got := s.status(k); got.Status != once.Absent {
		t.Errorf("the key is %v: %s", got.Status, b.text())
	}
}

// reach presses Tab until something has the focus, which can be seen.
func reach(b *tab, css string) {
	b.t.Helper()
	for range 60 {
		b.keys(kb.Tab)
		if eval[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", css)) {
			if eval[string](b, "getComputedStyle(document.activeElement).outlineStyle") == "none" {
				b.t.Errorf("the focus on %s cannot be seen", css)
			}
			return
		}
	}
	b.t.Fatalf("no Tab leads to %s, but to %s:\n%s", css, eval[string](b, "document.activeElement.outerHTML.slice(0, 200)"), b.text())
}
