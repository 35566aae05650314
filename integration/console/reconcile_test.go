//go:build linux

package console

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

// upload chooses a file with a report, and sends the form.
func (b *tab) upload(name, content string) int {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), name)
	proof.Must(b.t, os.WriteFile(file, []byte(content), 0o600))
	b.must(chromedp.Do(b.ctx, chromedp.SetUploadFiles(chromedp.CSS("#r-file"), []string{file})))
	return b.follow(".report button.main")
}

// reloadUntil loads a page again until something of a job or a comparison is there.
func (b *tab) reloadUntil(css string) {
	b.t.Helper()
	at := eval[string](b, "location.href")
	testenv.Await(b.t, css, func() bool {
		if b.has(css) {
			return true
		}
		b.visit(at)
		return false
	})
}

// describe fills in which keys a report is about, and which time it covers.
func (b *tab) describe(operation string) {
	b.t.Helper()
	b.fill("#r-operation", operation)
	b.fill("#r-id", "order")
	b.click("details:has(#r-since) > summary")
	b.fill("#r-since", "2001-01-01")
	b.fill("#r-until", time.Now().UTC().Format(time.RFC3339Nano))
	b.fill("#r-margin", "0s")
}

// Somebody compares the provider's report with the keys, sees what differs, and settles
// by it what nobody knew the outcome of: with and without JavaScript.
func TestReconcileWithAReport(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		axe, err := server.Axe(t.Context())
		proof.Must(t, err)
		for _, scripts := range []bool{true, false} {
			op := fmt.Sprint("charge-", scripts)
			key := func(id string) once.Key { return once.Key{Operation: op, ID: id} }
			for _, id := range []string{"order-1", "order-2", "order-3", "order-4"} {
				s.charge(key(id))
			}
			s.bring(key("order-5"), once.Done, "")
			b := s.open(ann)
			if !scripts {
				b.withoutScripts()
			}
			b.visit("/reconcile")
			b.describe(op)
			if status := b.upload("broken.csv", "order,amount\norder-1\n"); status != http.StatusUnprocessableEntity {
				t.Errorf("a broken report has the status %d", status)
			}
			b.sees("line 2 of the report: it has 1 fields, and the header has 2")
			if got := eval[string](b, `document.querySelector("#r-operation").value`); got != op {
				t.Errorf("the form has the operation %q", got)
			}
			report := "order,amount,state\norder-1,10.00,paid\norder-2,20.00,paid\norder-3,30.00,paid\norder-5,50.00,paid\norder-5,50.00,paid\n"
			if status := b.upload("charges.csv", report); status != http.StatusOK {
				t.Fatalf("the comparison has the status %d: %s", status, b.text())
			}
			b.reloadUntil(".findings")
			b.sees("5 keys differ", "happened_twice", "open_here", "open_not_there")
			if scripts && s.pool.Engine == engines.SQLite {
				b.look(axe)
			}
			b.follow(`a[href*="/reconcile/settle"]`)
			b.click("input[name=happened]")
			b.click("input[name=missing]")
			b.click("input[name=complete]")
			b.click("#reason")
			b.keys("as the provider's report shows, ticket 88")
			if status := b.follow(".settle button.main"); status != http.StatusOK {
				t.Fatalf("the question has the status %d: %s", status, b.text())
			}
			b.sees("Become done 3 keys", "Become free 1 key", "the report is complete from", "order-1", "ticket 88", "line 2 of the report")
			b.fits()
			b.picture(fmt.Sprint("reconcile-agree-", s.pool.Engine, scripts))
			if got := s.status(key("order-1")); got.Status != once.Unknown {
				t.Fatalf("it is %v before it is confirmed", got.Status)
			}
			b.follow("main form button.danger")
			b.reloadUntil(".status.done")
			testenv.Await(t, "the job ends", func() bool { return s.status(key("order-4")).Status == once.Absent })
			for id, want := range map[string]once.Status{"order-1": once.Done, "order-3": once.Done, "order-4": once.Absent, "order-5": once.Done} {
				if got := s.status(key(id)); got.Status != want {
					t.Errorf("%s is %v: %s", id, got.Status, got.Reason)
				}
			}
			if got := s.status(key("order-2")); !strings.Contains(got.Reason, "completed by ann: as the provider's report shows, ticket 88 (line 3 of the report)") {
				t.Errorf("the reason is %q", got.Reason)
			}
			testenv.Await(t, "the end of the job is in the audit", func() bool { // where it comes last
				b.visit("/audit")
				return strings.Contains(b.text(), "4 of 4 keys were settled")
			})
			b.sees("ticket 88", "began comparison")
		}

		// Who may only look sees which keys differ, and can change nothing.
		b := s.open(looker)
		b.visit("/reconcile")
		b.sees("you need the role decide", "charges.csv")
		b.visit("/reconcile/result?number=1&kind=happened_twice")
		b.sees("order-5")
		if b.has("main form") || b.has(`a[href*="/reconcile/settle"]`) {
			t.Error("somebody who may look can change something")
		}
	})
}

// look looks at the pages of a comparison, on a narrow and on a wide screen in both
// themes.
func (b *tab) look(axe string) {
	b.t.Helper()
	for i, l := range looks[:4] {
		b.looksAt(l)
		for name, path := range map[string]string{"form": "/reconcile?like=1", "result": "/reconcile/result?number=1&kind=open_here", "settle": "/reconcile/settle?number=1"} {
			b.visit(path)
			b.fits()
			b.picture("reconcile-" + name + "-" + l.String())
			if i == 0 || i == 3 {
				b.accessible(axe)
			}
		}
	}
	b.visit("/reconcile/result?number=1")
}

// What a report has in it runs nothing, and is no wider than the screen.
func TestHostileReport(t *testing.T) {
	s := newShop(t, engines.SQLite, nil)
	b := s.open(ann)
	b.visit("/reconcile")
	b.fill("#r-operation", "pay")
	text := "id\n"
	for _, id := range hostile {
		if (once.Key{Operation: "pay", ID: id}).Validate() == nil {
			text += `"` + strings.ReplaceAll(id, `"`, `""`) + "\"\n"
		}
	}
	if status := b.upload("<img src=x onerror=hacked=1>.csv", text); status != http.StatusOK {
		t.Fatalf("the comparison has the status %d: %s", status, b.text())
	}
	b.reloadUntil(".findings")
	for _, l := range []look{looks[0], looks[2]} {
		b.looksAt(l)
		for _, path := range []string{"/reconcile/result?number=1", "/reconcile", "/audit"} {
			b.visit(path)
			b.fits()
			if eval[bool](b, "'hacked' in window") || b.has("main script, main img") {
				t.Errorf("%s runs what it shows", path)
			}
			if all := b.text(); strings.ContainsAny(all, "\u202e\u2066\u200b\x1b") {
				t.Errorf("%s has invisible characters", path)
			}
		}
	}
}
