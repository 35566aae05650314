//go:build linux

package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once"
)

// A customer quotes an order. Whoever is on call finds it and reads its story, and the
// answer is shown on request only.
func TestFindAnOrder(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		s.fill()
		for _, scripts := range []bool{true, false} {
			b := open(t, s.at)
			if !scripts {
				b.withoutScripts()
			}
			if status := b.visit("/"); status != http.StatusUnauthorized {
				t.Errorf("without a sign-in the overview has the status %d", status)
			}
			b.sees("Sign in")
			b.fill("#token", "a-token-that-nobody-has-at-all")
			if status := b.follow("main form button"); status != http.StatusForbidden {
				t.Errorf("a wrong token: %d", status)
			}
			b.sees("This token is not known here")
			b.signIn(ann)
			b.fill("#find", "order-4705")
			b.follow(".search button")
			b.sees("order-4705", "done")
			b.follow("tbody a.row")
			b.sees("Timeline", "order-4705", "m-order-4705", "order.placed")
			b.misses(password)
			b.follow(".outcome form button")
			b.sees(password)
			b.visit("/audit")
			b.sees("ann", "signed in", "order-4705")
			b.follow(".who button")
			b.sees("Sign in")
			if strings.Contains(s.log.String(), ann) || strings.Contains(s.log.String(), password) {
				t.Error("a secret is in the log")
			}
		}
	})
}

// A link from a chat opens the page, before and after the sign-in.
func TestLinksCanBePasted(t *testing.T) {
	s := newShop(t, "sqlite", nil)
	k := s.charge(once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: "order-4711"})
	b := s.open("")
	b.visit(link(k))
	b.signIn(ann)
	b.sees("Timeline", "order-4711", "tenant-7")
	b.visit(link(k))
	b.sees("Timeline")
}

// decide fills the form of an unknown key's page, and reads what will change.
func decide(b *tab, k once.Key, choice, reason string) {
	b.t.Helper()
	b.visit(link(k))
	b.click("input[name=choice][value=" + choice + "]")
	b.fill("#settle ~ form #reason", reason)
	if status := b.follow("#settle ~ form button.main"); status != http.StatusOK {
		b.t.Fatalf("the confirmation has the status %d: %s", status, b.text())
	}
	b.sees(k.ID, k.Scope, reason)
}

// Somebody who asked the provider settles a charge, confirms what they have read, and
// the audit names them.
func TestSettleAnUnknownKey(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		for choice, want := range map[string]once.Status{"happened": once.Done, "not-happened": once.Absent} {
			for _, scripts := range []bool{true, false} {
				k := s.charge(once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: fmt.Sprint("order-", choice, scripts)})
				b := s.open(ann)
				if !scripts {
					b.withoutScripts()
				}
				decide(b, k, choice, "asked the provider, ticket 88")
				if got := s.status(k); got.Status != once.Unknown {
					t.Fatalf("it is %v before it is confirmed", got.Status)
				}
				if status := b.follow("main form button.main, main form button.danger"); status != http.StatusOK {
					t.Errorf("the decision has the status %d: %s", status, b.text())
				}
				got := s.status(k)
				if got.Status != want {
					t.Errorf("%s: the key is %v", choice, got.Status)
				}
				b.visit("/audit")
				b.sees("ann", k.ID, "asked the provider, ticket 88")
			}
		}
	})
}

// Two people have one key in front of them. The second learns that it has changed,
// and changes nothing.
func TestTwoPeopleSettleOneKey(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		k := s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
		first, second := s.open(ann), s.open(bob)
		decide(first, k, "happened", "the provider has it")
		decide(second, k, "not-happened", "the provider does not have it")
		first.follow("main form button.main, main form button.danger")
		if status := second.follow("main form button.main, main form button.danger"); status != http.StatusConflict {
			t.Errorf("the second decision has the status %d: %s", status, second.text())
		}
		second.picture("conflict")
		if got := s.status(k); got.Status != once.Done || !strings.Contains(got.Reason, "the provider has it") {
			t.Errorf("the key is %v: %s", got.Status, got.Reason)
		}
		second.visit("/audit")
		second.misses("does not have it")
	})
}
