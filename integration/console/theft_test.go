//go:build linux

package console

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
)

// decision returns what the page of a key sends with a decision: the worst case is a
// thief who knows all of it but the token of the form.
func decision(k once.Key) url.Values {
	return url.Values{"store": {"shop"}, "scope": {k.Scope}, "operation": {k.Operation}, "id": {k.ID}, "choice": {"happened"}, "reason": {"stolen"}}
}

// A page of another site has a form and a script that use the sign-in of whoever looks
// at it, and shows the console in a frame. It gets nothing.
func TestAnotherSiteGetsNothing(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	k := s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
	b := s.open(chief)
	b.visit(link(k))
	fields := decision(k)
	fields.Set("version", eval[string](b, "document.querySelector('input[name=version]').value"))
	fields.Set("form", eval[string](b, "document.querySelector('input[name=form]').value")) // even with it
	var form strings.Builder
	fmt.Fprintf(&form, "<form method=post action=%q>", s.at+"/key/settle")
	for name, value := range fields {
		fmt.Fprintf(&form, "<input name=%q value=%q>", name, html.EscapeString(value[0]))
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<!doctype html>%s<button>Win</button></form>\n<iframe src=%q></iframe>", form.String(), s.at+"/")
	}))
	defer evil.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(evil.URL, "http://"), ":")
	for _, site := range []string{evil.URL, "http://evil.example:" + port} { // the same host at another port, to which cookies go, and another host
		b.visit(site)
		if framed := eval[bool](b, "document.querySelector('iframe').contentDocument !== null"); framed {
			t.Errorf("%s: the console can be read in a frame", site)
		}
		if said := b.allow(); !in(said, "frame-ancestors") && !in(said, "X-Frame-Options") {
			t.Errorf("%s: the frame was not refused: %q", site, said)
		}
		answered := eval[string](b, fmt.Sprintf(`fetch(%q, {method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams(%q)}).then(function (r) { return r.type }, function (e) { return "failed" })`,
			s.at+"/key/settle", fields.Encode()))
		if answered != "opaque" && answered != "failed" {
			t.Errorf("%s reads the answer: %s", site, answered)
		}
		read := eval[string](b, fmt.Sprintf(`fetch(%q, {credentials: "include"}).then(function (r) { return r.text() }, function (e) { return "failed" })`, s.at+link(k)))
		if read != "failed" {
			t.Errorf("%s reads a page: %s", site, read)
		}
		b.allow()
		if status := b.follow("form button"); status != http.StatusForbidden {
			t.Errorf("%s: its form has the status %d", site, status)
		}
		b.sees("came from another site")
		if got := s.status(k); got.Status != once.Unknown {
			t.Fatalf("%s: the key is %v: %s", site, got.Status, got.Reason)
		}
		b.allow()
	}
}

// A name of another site that points to the console is refused, so that site's scripts
// cannot read it as their own.
func TestHostsAreNotRebound(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	b := s.open("")
	_, port, _ := strings.Cut(strings.TrimPrefix(s.at, "http://"), ":")
	if status := b.visit("http://rebound.example:" + port + "/"); status != http.StatusMisdirectedRequest {
		t.Errorf("the status is %d: %s", status, b.text())
	}
	b.misses("Token")
	b.allow() // its style is refused, too
}

// Whoever has stolen a token that may only look changes nothing, and reads no answer.
func TestAStolenLookOnlyToken(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		done := s.order("order-4705")
		k := s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
		b := s.open(looker)
		b.visit(link(done))
		b.misses(password, "Show the answer")
		before := s.status(k)
		form := eval[string](b, "document.querySelector('input[name=form]').value")
		for _, path := range []string{"/key/outcome", "/key/confirm", "/key/settle", "/key/reopen/confirm", "/key/reopen"} {
			for _, key := range []once.Key{k, done} {
				fields := decision(key)
				fields.Set("form", form)
				said := eval[[]string](b, fmt.Sprintf(`fetch(%q, {method: "POST", body: new URLSearchParams(%q)}).then(function (r) { return r.text().then(function (text) { return [String(r.status), text] }) })`,
					path, fields.Encode()))
				if said[0] != "403" || strings.Contains(said[1], password) {
					t.Errorf("%s: %s", path, said[0])
				}
			}
		}
		for _, path := range []string{"/", "/find?all=1", link(done), link(k), "/audit"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.at+path, nil)
			proof.Must(t, err)
			answer, err := http.DefaultClient.Do(r)
			proof.Must(t, err)
			page, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			proof.Must(t, err)
			if answer.StatusCode != http.StatusUnauthorized || strings.Contains(string(page), "order-4711") && path != link(k) {
				t.Errorf("without a sign-in, %s has the status %d", path, answer.StatusCode)
			}
			b.visit(path)
			b.misses(password)
		}
		if got := s.status(k); got.Status != before.Status || got.Updated != before.Updated {
			t.Errorf("the key has changed: %+v", got)
		}
	})
}
