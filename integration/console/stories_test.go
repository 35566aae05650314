//go:build linux

package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store"
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

// Somebody comes from their tracing, with a trace id. The messages of the trace lead to
// the order that put them, and to the consumer that has parked one. The rest is said.
func TestFindATrace(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	onEach(t, func(t *testing.T, s *shop) {
		s.fill()
		header := map[string]string{"traceparent": "00-" + trace + "-c0ffee6b71692033-01", "tracestate": "vendor=<b>1</b>"}
		order := s.orderWith("order-4720", header)
		header = map[string]string{"traceparent": header["traceparent"], store.KeyHeader: order.String()}
		shelf, _ := once.As[store.Shelf](s.store)
		proof.Must(t, shelf.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", Key: "m-order-4720", State: store.Parked, Attempts: 10, Reason: "no such customer",
			Message: broker.Message{ID: "m-order-4720", Topic: "order.placed", Header: header, Body: []byte(strings.Repeat("x", 1<<20))}}}))
		for _, scripts := range []bool{true, false} {
			b := s.open(looker)
			if !scripts {
				b.withoutScripts()
			}
			for _, text := range []string{trace, strings.ToUpper(header["traceparent"])} {
				b.visit("/")
				b.fill("#find", text)
				b.follow(".search button")
				b.sees("Messages of this trace", "m-order-4720", "parked", "set aside by billing", "put by order order-4720", "once.key")
				b.misses("c0ffee", "m-order-4701", "vendor")
				b.fits()
				b.picture("trace")
				if all := b.searchOn(); strings.Count(all, "topic order.placed") != 2 || !strings.Contains(all, "pending") || !strings.Contains(all, "15 messages were read") {
					t.Errorf("both messages of the trace are not found among 15:\n%s", all)
				}
			}
			b.visit("/find?q=" + trace)
			b.follow("tbody a.row")
			b.sees("m-order-4720", "billing")
			b.visit("/find?q=" + trace)
			b.follow("tbody td[data-label=Key] a:last-of-type")
			b.sees("Timeline", "order-4720", "m-order-4720")
			b.visit("/find?q=" + strings.Repeat("a", 32))
			b.sees("never finds work that put no message")
			if all := b.searchOn(); strings.Contains(all, "m-order") || !strings.Contains(all, "15 messages were read, and no") {
				t.Errorf("a trace that nothing is of finds:\n%s", all)
			}
		}
	})
}

// searchOn searches messages to their end, however long that takes, and returns what the
// pages say.
func (b *tab) searchOn() (all string) {
	b.t.Helper()
	for {
		all += " " + strings.Join(strings.Fields(b.text()), " ")
		if strings.Contains(all, "That is all that is kept") {
			return all
		}
		b.follow("a[rel=next][href*='trace=']")
	}
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

// failures parks messages that failed for three causes: the bank was down, customers are
// missing, and a timeout that leaves open what happened.
func (s *shop) failures() {
	s.t.Helper()
	shelf, ok := once.As[store.Shelf](s.store)
	if !ok {
		s.t.Fatal("the store has no shelf")
	}
	var ms []store.Shelved
	for i, reason := range []string{"the bank said: status 503, request r-%d", "no such customer c-%d", "the bank said: status 503, request r-%d", store.UnknownOutcome + "no answer after %d s",
		"the bank said: status 503, request r-%d", "no such customer c-%d"} {
		id := fmt.Sprint("order-", 4730+i)
		ms = append(ms, store.Shelved{Consumer: "billing", Key: id, State: store.Parked, Attempts: 10, Reason: fmt.Sprintf(reason, 17+i),
			Message: broker.Message{ID: id, Topic: "order.placed", OrderingKey: id, Body: []byte("{}")}})
	}
	proof.Must(s.t, shelf.Shelve(s.t.Context(), ms))
}

// Messages failed for three causes. One is repaired, and its messages are replayed. The
// others stay parked, also those that came before and after them.
func TestReplayOneCause(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		axe, err := server.Axe(t.Context())
		proof.Must(t, err)
		shelf, _ := once.As[store.Shelf](s.store)
		s.failures()
		for i, scripts := range []bool{true, false} {
			b := s.open(ann)
			if !scripts {
				b.withoutScripts()
			}
			b.looksAt(look{[]int64{1280, 375}[i], 812, false})
			b.visit("/messages")
			if i == 0 {
				b.sees("Failed alike", "3 the bank said: status 503, request …", "2 no such customer …", "1 may have happened unknown outcome: no answer after … s")
			} else {
				b.sees("Failed alike", "2 no such customer …", "1 may have happened")
				b.misses("the bank said")
			}
			b.fits()
			if scripts {
				b.accessible(axe)
			}
			b.picture(fmt.Sprint("failures-", scripts))
			want := []string{"the bank said: status 503, request …", "no such customer …"}[i]
			b.follow(".alike li:first-child a")
			if at := eval[string](b, "location.search"); strings.Contains(at, "bank") || strings.Contains(at, "customer") {
				t.Errorf("the URL has the reason: %s", at)
			}
			b.sees("Failed alike: "+want, "Remove")
			b.fits()
			if scripts {
				b.accessible(axe)
			}
			b.picture(fmt.Sprint("failures-chosen-", scripts))
			b.follow(".acts a.button")
			b.sees("failed alike "+want, "Outcome unknown")
			b.click("#reason")
			b.keys("repaired: ticket 91")
			if status := b.follow("main form button.main"); status != http.StatusOK {
				t.Fatalf("the confirmation has the status %d: %s", status, b.text())
			}
			n := 3 - i
			b.sees(fmt.Sprintf("%d messages, of %d that match", n, n), "failed alike "+want)
			b.fits()
			if scripts {
				b.accessible(axe)
			}
			b.picture(fmt.Sprint("failures-confirm-", scripts))
			b.follow("main form button.main")
			proof.Await(t, "the job has ended", func() bool {
				b.visit(fmt.Sprint("/job?number=", i+1))
				return strings.Contains(b.text(), "finished")
			})
			b.sees(fmt.Sprintf("%d of %d", n, n), "failed alike "+want)
			parked, err := shelf.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}})
			proof.Must(t, err)
			left := ""
			for _, m := range parked {
				left += m.Message.ID + " "
			}
			if want := []string{"order-4731 order-4733 order-4735 ", "order-4733 "}[i]; left != want {
				t.Errorf("%sare still parked, want %s", left, want)
			}
			b.visit("/audit")
			b.sees("ann", fmt.Sprintf("replay %d messages that failed alike: %s", n, want))
		}
		if strings.Contains(s.log.String(), "the bank said") || strings.Contains(s.log.String(), "no such customer") {
			t.Error("a reason is in the log")
		}
	})
}
