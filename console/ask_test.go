package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// bank is the other system.
type bank struct {
	mu    sync.Mutex
	paid  map[string]bool // by id
	down  bool
	asked []string
	meet  func(id string) // called with each question
}

func (b *bank) lookup(ctx context.Context, k once.Key) (v string, happened bool, err error) {
	b.mu.Lock()
	b.asked = append(b.asked, k.ID)
	down, paid, meet := b.down, b.paid[k.ID], b.meet
	b.mu.Unlock()
	if meet != nil {
		meet(k.ID)
	}
	if down {
		return "", false, errors.New("the bank is down " + script)
	}
	return "ch_secret_" + k.ID, paid, ctx.Err()
}

func (b *bank) questions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.asked)
}

// branch is a store with unknown charges about which a bank can be asked.
func branch(t *testing.T, o Options, ids ...string) (*memstore.Store, *bank, *Console, *logtest.Log) {
	t.Helper()
	s, log, b := memstore.New(nil), new(logtest.Log), &bank{paid: map[string]bool{"paid": true}}
	for _, id := range ids {
		unknown(t, s, charge(id))
	}
	o.Stores = []Store{{Name: "shop", Store: s, Ask: []reconcile.Operation{reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: b.lookup})}}}
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	return s, b, open(t, o), log
}

func charge(id string) once.Key { return once.Key{Operation: "pay/charge", ID: id} }

func status(t *testing.T, s once.Store, id string) once.Status {
	t.Helper()
	return get(t, s, keyRef{"shop", charge(id)}).Status
}

func (b *browser) ask(k once.Key) *browser {
	b.t.Helper()
	b.get((&Console{}).keyLink(keyRef{"shop", k})).is(http.StatusOK)
	return b.fill("/ask")
}

// asked waits until an inquiry has ended, and loads its page.
func (b *browser) asked(c *Console) *browser {
	b.t.Helper()
	q := c.inquiries.latest()[0]
	testenv.Await(b.t, "the inquiry ends", func() bool { return !q.isWorking() })
	return b.get(c.inquiryLink(q.Number))
}

// The answer about a key is shown first, and settles it when somebody says so.
func TestAskingAboutAKeyChangesNothing(t *testing.T) {
	s, bank, c, log := branch(t, Options{Write: true}, "paid", "lost")
	b := as(t, c, decideToken)
	b.ask(charge("paid")).asked(c).is(http.StatusOK).shows("1 of 1 asked about", "it happened", "done", "Nothing is changed yet").hides("ch_secret")
	b.fill("/ask/answer").is(http.StatusOK).shows("ch_secret_paid")
	b.fill("/ask/confirm", "reason", " ").is(http.StatusUnprocessableEntity).shows("Say why")
	b.fill("/ask/confirm", "reason", "the bank is back").is(http.StatusOK).shows("Settle 1 key by the answers?", "becomes done 1", "the bank is back")
	if got := status(t, s, "paid"); got != once.Unknown {
		t.Fatalf("it is %v before it is confirmed", got)
	}
	b.fill("/ask/settle").asked(c).is(http.StatusOK).shows("1 settled", "settled")
	r := get(t, s, keyRef{"shop", charge("paid")})
	if r.Status != once.Done || string(r.Outcome.Body) != `"ch_secret_paid"` || r.Reason != "the answer was done, applied by dee: the bank is back" {
		t.Errorf("it is %v with %s, %q", r.Status, r.Outcome.Body, r.Reason)
	}
	b.ask(charge("lost")).asked(c).shows("it did not happen", "free").fill("/ask/confirm", "reason", "x").shows("becomes free 1").fill("/ask/settle").asked(c)
	if got := status(t, s, "lost"); got != once.Absent {
		t.Errorf("it is %v", got)
	}
	b.get("/audit").shows("dee", "asked about 1 unknown key", "looked at the answer to a question", "settled 1 key by the answers", "the bank is back")
	for _, want := range []string{"console: an answer was recorded", "answer=done", "becomes=done", "by=dee"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("not logged: %s", want)
		}
	}
	if strings.Contains(log.String(), "ch_secret") || bank.questions() != 2 {
		t.Errorf("asked %v, logged %s", bank.asked, log)
	}
}

// Only what the program has configured is asked, whatever a form says.
func TestOnlyWhatIsConfiguredIsAsked(t *testing.T) {
	s, bank, c, _ := branch(t, Options{Write: true}, "1")
	other := once.Key{Operation: "mail", ID: "1"}
	unknown(t, s, other)
	done := once.Key{Operation: "charge", ID: "done"}
	settle(t, s, claim(t, s, done, once.Key{}, time.Minute), once.Done, "", "{}", "application/json")
	b := as(t, c, decideToken)
	b.get(c.keyLink(keyRef{"shop", other}))
	if b.form("/ask") != nil {
		t.Error("a key about which nobody can be asked has a button")
	}
	b.get(c.keyLink(keyRef{"shop", charge("1")}))
	form := b.form("/ask").values()
	for name, to := range map[string]once.Key{"another operation": other, "a key that is done": done, "no such key": {Operation: "charge", ID: "x"}} {
		form.Set("operation", to.Operation)
		form.Set("id", to.ID)
		form.Set("url", "http://169.254.169.254/")
		if b.post("/ask", form); b.status != http.StatusNotFound && b.status != http.StatusConflict {
			t.Errorf("%s: status %d", name, b.status)
		}
	}
	if bank.questions() != 0 {
		t.Errorf("asked about %v", bank.asked)
	}
	look := as(t, c, lookToken)
	look.get(c.keyLink(keyRef{"shop", charge("1")})).hides("Ask now")
	look.get("/unknown").hides("Ask now")
}

// All that match are asked about, up to a limit. Nothing is changed where the
// console is read-only.
func TestAllThatMatchAreAskedAbout(t *testing.T) {
	s, bank, c, _ := branch(t, Options{}, "paid", "1", "2", "3")
	unknown(t, s, once.Key{Operation: "mail", ID: "1"})
	unknown(t, s, once.Key{Operation: "refund/charge", ID: "9"})
	b := as(t, c, decideToken)
	b.get("/unknown?operation=pay%2Fcharge").fill("/ask", "limit", "0").is(http.StatusBadRequest).shows("Nobody was asked")
	b.get("/unknown?operation=pay%2Fcharge").fill("/ask", "rate", "x").is(http.StatusBadRequest)
	b.get("/unknown?operation=pay%2Fcharge").fill("/ask", "limit", "3").asked(c).shows("3 of 3 asked about", "More keys match", "read-only")
	if bank.questions() != 3 {
		t.Errorf("asked about %v", bank.asked)
	}
	b.post("/ask/settle", url.Values{tokenField: {b.form("/sign-out").values().Get(tokenField)}, "number": {"1"}, "reason": {"x"}, "open": {"3"}}).is(http.StatusForbidden)
	b.get("/unknown").fill("/ask").asked(c).shows("5 of 5 asked about", "1 becomes done, 4 become free")
	for _, id := range []string{"paid", "1", "2", "3"} {
		if got := status(t, s, id); got != once.Unknown {
			t.Errorf("%s is %v", id, got)
		}
	}
	as(t, c, lookToken).get("/unknown").shows("Asked lately", "5 of 5", "dee").follow("2").is(http.StatusOK).hides("Show the answer")
	bank.down = true
	b.get("/unknown?operation=refund%2Fcharge").fill("/ask").asked(c).shows("no answer yet", "the bank is down", "1 stays unknown").hides(script)
	if b.form("/ask/confirm") != nil {
		t.Error("nothing can be settled, and there is a form for it")
	}
}

// What has changed since it was asked about is left as it is.
func TestAnAnswerSettlesOnlyWhatWasAskedAbout(t *testing.T) {
	s, _, c, _ := branch(t, Options{Write: true}, "paid", "lost", "moved")
	b := as(t, c, decideToken)
	b.get("/unknown").fill("/ask").asked(c).fill("/ask/confirm", "reason", "x").shows("Settle 3 keys")
	r := get(t, s, keyRef{"shop", charge("moved")})
	r.Key = charge("moved")
	again, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: r.Key, Owner: [16]byte{7}, Attempt: r.Attempt}, Lease: time.Minute})
	if err != nil || again.Owner != [16]byte{7} {
		t.Fatal(err)
	}
	settle(t, s, once.Record{Key: r.Key, Owner: again.Owner, Attempt: again.Attempt}, once.Unknown, "another attempt", "", "")
	b.fill("/ask/settle").asked(c).shows("2 settled", "not changed", "The record has changed since it was asked about")
	if got := get(t, s, keyRef{"shop", charge("moved")}); got.Status != once.Unknown || got.Attempt != again.Attempt {
		t.Errorf("the next attempt is %v", got.Status)
	}
	if status(t, s, "paid") != once.Done || status(t, s, "lost") != once.Absent {
		t.Error("the others are not settled")
	}
}

// Of two people who settle by the same answers, the second is told.
func TestTwoPeopleSettleByTheSameAnswers(t *testing.T) {
	_, _, c, log := branch(t, Options{Write: true}, "paid", "lost")
	first, second := as(t, c, decideToken), as(t, c, adminToken)
	first.get("/unknown").fill("/ask").asked(c).fill("/ask/confirm", "reason", "of dee")
	second.get("/ask?number=1").fill("/ask/confirm", "reason", "of ada").is(http.StatusOK)
	first.fill("/ask/settle").asked(c).shows("2 settled")
	second.fill("/ask/settle").is(http.StatusConflict).shows("Nothing was changed")
	if n := strings.Count(log.String(), "console: an answer was recorded"); n != 2 || strings.Contains(log.String(), "of ada") {
		t.Errorf("%d answers were recorded: %s", n, log)
	}
}

// A store that fails ends it, and the rest stays as it is.
func TestAStoreFailsWhileAnswersSettle(t *testing.T) {
	ill, bank := &ailing{Store: memstore.New(nil)}, &bank{}
	for i := range 5 {
		unknown(t, ill.Store, charge(fmt.Sprint(i)))
	}
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: ill,
		Ask: []reconcile.Operation{reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: bank.lookup})}}}})
	b := as(t, c, decideToken)
	b.get("/unknown").fill("/ask").asked(c).fill("/ask/confirm", "reason", "x")
	ill.down = true
	b.fill("/ask/settle").asked(c).shows("The store shop failed, so the rest was left as it is", "It is not known whether this was recorded").hides(script)
	ill.down = false
	for i := range 5 {
		if got := status(t, ill, fmt.Sprint(i)); got != once.Unknown {
			t.Errorf("%d is %v", i, got)
		}
	}
	b.asked(c).fill("/ask/confirm", "reason", "x").shows("Settle 4 keys").fill("/ask/settle").asked(c).shows("4 settled")
}

// Questions can be stopped, one that panics is contained, and Close does not wait
// for an answer.
func TestQuestionsEnd(t *testing.T) {
	_, bank, c, _ := branch(t, Options{Write: true}, "1", "2", "3")
	bank.meet = func(string) { panic("dial bank://app:hunter2@bank") }
	b := as(t, c, decideToken)
	b.ask(charge("1")).asked(c).shows("Lookup panicked", "unknown").hides("hunter2")

	held := make(chan struct{})
	c2 := open(t, Options{Stores: []Store{{Name: "shop", Store: c.o.Stores[0].Store, Ask: []reconcile.Operation{reconcile.Of(&once.Operation[string]{Name: "charge",
		Lookup: func(ctx context.Context, k once.Key) (string, bool, error) {
			held <- struct{}{}
			<-ctx.Done()
			return "", false, ctx.Err()
		}})}}}})
	b = as(t, c2, decideToken)
	b.get("/unknown").fill("/ask").is(http.StatusOK).shows("asking", "0 of 3 asked about")
	for range 3 {
		<-held
	}
	b.fill("/ask/stop").asked(c2).shows("Stopped by dee", "0 of 3 asked about")
	b.get("/unknown").fill("/ask").is(http.StatusOK)
	for range 3 {
		<-held
	}
	c2.Close()
	b.get("/unknown").fill("/ask").is(http.StatusServiceUnavailable).shows("closing")
}

// What cannot be asked is refused when the console is made.
func TestQuestionsAreCheckedAtFirst(t *testing.T) {
	for _, ask := range [][]reconcile.Operation{{{}}, {reconcile.Of(&once.Operation[string]{Name: "a"}), reconcile.Of(&once.Operation[string]{Name: "a"})}} {
		_, err := New(Options{People: people(), Stores: []Store{{Name: "shop", Store: memstore.New(nil), Ask: ask}}})
		if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "shop") {
			t.Errorf("%v", err)
		}
	}
}
