package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

// bench is a store with an unknown key, and a console that may change it.
func bench(t *testing.T) (*memstore.Store, *Console, keyRef, *logtest.Log) {
	t.Helper()
	s, log := memstore.New(nil), new(logtest.Log)
	k := keyRef{"shop", once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: "order-4711"}}
	unknown(t, s, k.Key)
	return s, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true, Log: slog.New(slog.NewTextHandler(log, nil))}), k, log
}

func get(t *testing.T, s once.Store, k keyRef) once.Record {
	t.Helper()
	r, err := s.Get(t.Context(), k.Key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A holder that has answered a second ago is not gone.
func TestALapsedLeaseIsToldFromAReportedOutcome(t *testing.T) {
	s := memstore.New(nil)
	order := once.Key{Operation: "order", ID: "4711"}
	settle(t, s, claim(t, s, order, once.Key{}, time.Minute), once.Done, "", "{}", "application/json")
	said := once.Key{Operation: "charge", ID: "0198c2f0-5f3e-7cc1-9d3a-6f0f0a1f2b3c"}
	settle(t, s, claim(t, s, said, order, time.Minute), once.Unknown, "the provider answered no", "", "")
	lapse(t, s, "crashed")
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
	b := as(t, c, decideToken)
	b.get("/unknown").is(http.StatusOK).shows("the provider answered no", "the lease lapsed: its holder crashed, or is cut off from the store",
		"travels as "+said.String(), "caused by order 4711", "travels as "+pay("crashed").String())
	b.get(c.keyLink(keyRef{"shop", said})).shows("ended with an error that does not say whether the work happened", "Attempt 1 has reported").hides("holder is gone", "lapsed")
	b.get(c.keyLink(keyRef{"shop", pay("crashed")})).shows("Its holder is gone: the lease lapsed", "Attempt 1 has not reported an outcome").hides("has reported that")
}

func TestAnUnknownKeyIsCompleted(t *testing.T) {
	s, c, k, log := bench(t)
	b := as(t, c, decideToken)
	b.get("/unknown").is(http.StatusOK).shows("1 unknown, the oldest first").follow("order-4711").is(http.StatusOK)
	b.shows("does not say whether the work happened", "Attempt 1 has reported that its outcome is not known", "the connection broke")
	b.fill("/key/confirm", "choice", "happened", "reason", "charge ch_9 is there", "answer", "{\"charge\":\r\n\"ch_9\"}").is(http.StatusOK)
	b.shows("Complete this key?", "order-4711", "tenant-7", "shop", "unknown attempt 1", "the connection broke", "application/json", `"charge": "ch_9"`, "completed by dee: charge ch_9 is there")
	if r := get(t, s, k); r.Status != once.Unknown {
		t.Fatalf("asking has made it %v", r.Status)
	}
	b.fill("/key/settle").is(http.StatusOK).shows("You have completed this key", "completed by dee: charge ch_9 is there")
	if r := get(t, s, k); r.Status != once.Done || string(r.Outcome.Body) != "{\"charge\":\n\"ch_9\"}" || r.Outcome.ContentType != "application/json" || !r.Intact() {
		t.Errorf("it is %v with %q", r.Status, r.Outcome.Body)
	}
	if !strings.Contains(log.String(), "console: audit") || !strings.Contains(log.String(), "deed=completed by=dee") || !strings.Contains(log.String(), "was=unknown") {
		t.Errorf("logged %s", log)
	}
	b.get("/audit").shows("dee", "completed", "pay/charge order-4711 of tenant-7", "charge ch_9 is there")
}

func TestAnUnknownKeyIsReleased(t *testing.T) {
	s, c, k, _ := bench(t)
	b := as(t, c, decideToken)
	b.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "no charge there").shows("Release this key?", "the next call with this key runs the work")
	b.fill("/key/settle").is(http.StatusOK).shows("You have released this key", "Free again")
	if r := get(t, s, k); r.Status != once.Absent || r.Reason != "released by dee: no charge there" {
		t.Errorf("it is %v, %q", r.Status, r.Reason)
	}
}

func TestAParkedKeyIsCompletedWithoutItsAnswer(t *testing.T) {
	s, c, _, _ := bench(t)
	k := keyRef{"shop", once.Key{Operation: "mail", ID: "1"}}
	settle(t, s, claim(t, s, k.Key, once.Key{}, time.Minute), once.Parked, "timeout", "", "")
	b := as(t, c, decideToken)
	b.get("/parked").shows("1 parked").follow("mail").fill("/key/confirm", "choice", "happened", "reason", "it arrived", "rejected", "yes").shows("duplicates get once.ErrOutcomeUnavailable", "rejection")
	b.fill("/key/settle").is(http.StatusOK).shows("The answer was not kept")
	if r := get(t, s, k); r.Status != once.Done || !r.Outcome.Omitted || !r.Outcome.Rejected {
		t.Errorf("it is %v with %+v", r.Status, r.Outcome)
	}
}

func TestWorkThatIsDoneRunsAgain(t *testing.T) {
	s, c, _, _ := bench(t)
	k := keyRef{"shop", once.Key{Operation: "pay", ID: "1"}}
	settle(t, s, claim(t, s, k.Key, once.Key{}, time.Minute), once.Done, "", `{}`, "application/json")
	if b := as(t, c, decideToken); b.get(c.keyLink(k)).form("/key/reopen") != nil {
		t.Error("the role decide is offered to have it run again")
	}
	b := as(t, c, adminToken)
	b.get(c.keyLink(k)).fill("/key/reopen/confirm", "reason", "refunded, ticket 88").is(http.StatusOK).shows("Let it run again?", "its effect can happen twice")
	if r := get(t, s, k); r.Status != once.Done {
		t.Fatalf("asking has made it %v", r.Status)
	}
	b.fill("/key/reopen").is(http.StatusOK).shows("You have forgotten this key", "forgotten by ada: refunded, ticket 88")
	if r := get(t, s, k); r.Status != once.Absent {
		t.Errorf("it is %v", r.Status)
	}
}

// The role that may settle cannot have work run again by another form.
func TestSettlingDoesNotReopen(t *testing.T) {
	s, c, _, _ := bench(t)
	k := keyRef{"shop", once.Key{Operation: "pay", ID: "1"}}
	settle(t, s, claim(t, s, k.Key, once.Key{}, time.Minute), once.Done, "", `{}`, "application/json")
	b := as(t, c, decideToken).get("/")
	form := b.form("/sign-out").values()
	for name, value := range map[string]string{"store": "shop", "operation": "pay", "id": "1", "version": versionOf(get(t, s, k)), "reason": "why", "choice": "run-again"} {
		form.Set(name, value)
	}
	b.post("/key/settle", form).is(http.StatusUnprocessableEntity)
	b.post("/key/reopen", form).is(http.StatusForbidden)
	form.Set("choice", "happened")
	b.post("/key/settle", form).is(http.StatusUnprocessableEntity).shows("Nothing was changed")
	if r := get(t, s, k); r.Status != once.Done {
		t.Errorf("it is %v", r.Status)
	}
}

func TestBadDecisionsAreExplainedAndKept(t *testing.T) {
	s, c, k, _ := bench(t)
	for want, pairs := range map[string][]string{
		"Choose whether":      {"reason", "because"},
		"Say why":             {"choice", "happened", "reason", " \t "},
		"bytes, but only":     {"choice", "happened", "reason", strings.Repeat("x", longestReason+1)},
		"has no answer":       {"choice", "not-happened", "reason", "because", "answer", "{}"},
		"is not JSON":         {"choice", "happened", "reason", "because", "answer", "ch_9"},
		"The answer is not U": {"choice", "happened", "reason", "because", "answer", "\xff", "content-type", "text/plain"},
	} {
		b := as(t, c, decideToken)
		b.get(c.keyLink(k)).fill("/key/confirm", pairs...).is(http.StatusUnprocessableEntity).shows(want)
		if kept := b.form("/key/confirm").values().Get("reason"); strings.TrimSpace(pairs[len(pairs)-1]) != "" && kept == "" && want != "Say why" {
			t.Errorf("%s: the reason is lost", want)
		}
	}
	if r := get(t, s, k); r.Status != once.Unknown {
		t.Errorf("it is %v", r.Status)
	}
}

// Two people look at one record. The second one is told, whatever they decide.
func TestTwoPeopleCannotBothDecide(t *testing.T) {
	for _, second := range []string{"happened", "not-happened"} {
		s, c, k, _ := bench(t)
		dee, ada := as(t, c, decideToken), as(t, c, adminToken)
		dee.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "not there")
		ada.get(c.keyLink(k)).fill("/key/confirm", "choice", second, "reason", "seen by ada")
		late := as(t, c, adminToken).get(c.keyLink(k))
		dee.fill("/key/settle").is(http.StatusOK)
		ada.fill("/key/settle").is(http.StatusConflict).shows("this key has changed since you looked at it", "released by dee: not there")
		late.fill("/key/confirm", "choice", second, "reason", "too late").is(http.StatusConflict)
		if r := get(t, s, k); r.Status != once.Absent || r.Reason != "released by dee: not there" {
			t.Errorf("it is %v, %q", r.Status, r.Reason)
		}
		for _, d := range c.trail.latest() {
			if d.By == "ada" && d.Reason != "" {
				t.Errorf("the audit has %+v", d)
			}
		}
	}
}

// meeting holds a settlement up, so that another person can settle the same record
// if the console lets them.
type meeting struct {
	*memstore.Store
	settling atomic.Int32
}

func (s *meeting) Settle(ctx context.Context, set once.Settlement) error {
	s.settling.Add(1)
	for n := 0; n < 100_000 && s.settling.Load() < 2; n++ {
		runtime.Gosched()
	}
	return s.Store.Settle(ctx, set)
}

// The store takes the second of two equal settlements for a repetition. It makes no
// difference whether the two people use the same console.
func TestTheSameDecisionAtTheSameMomentIsMadeOnce(t *testing.T) {
	for _, consoles := range []int{1, 2} {
		s := &meeting{Store: memstore.New(nil)}
		k := keyRef{"s", once.Key{Operation: "pay", ID: "1"}}
		unknown(t, s.Store, k.Key)
		var at []*Console
		for range 2 {
			if len(at) < consoles {
				at = append(at, open(t, Options{Stores: []Store{{Name: "s", Store: s}}, Write: true}))
			}
		}
		both := []*browser{as(t, at[0], decideToken), as(t, at[consoles-1], adminToken)}
		for _, b := range both {
			b.get(at[0].keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "not there")
		}
		var deciding sync.WaitGroup
		for _, b := range both {
			deciding.Add(1)
			go func() {
				defer deciding.Done()
				b.fill("/key/settle")
			}()
		}
		deciding.Wait()
		if was := both[0].status + both[1].status; was != http.StatusOK+http.StatusConflict {
			t.Errorf("with %d consoles, the two were told %d and %d", consoles, both[0].status, both[1].status)
		}
	}
}

// A form that is sent twice, as by a double click, is not taken for a conflict.
// Another answer is.
func TestADecisionThatIsRepeatedIsOnesOwn(t *testing.T) {
	s, c, k, _ := bench(t)
	b := as(t, c, decideToken).get(c.keyLink(k))
	b.fill("/key/confirm", "choice", "happened", "reason", "ch_9 is there", "answer", `{"charge":"ch_9"}`)
	confirm := b.page
	b.fill("/key/settle").is(http.StatusOK)
	for range 2 {
		b.page = confirm
		b.fill("/key/settle").is(http.StatusOK).shows("You have completed this key before, with this reason")
	}
	b.page = confirm
	b.fill("/key/settle", "answer", `{"charge":"ch_8"}`).is(http.StatusConflict)
	ada := as(t, c, adminToken)
	form := b.form("/sign-out").values()
	for name, value := range map[string]string{"store": k.Store, "scope": k.Scope, "operation": k.Operation, "id": k.ID, "version": "unknown.1.x.0",
		"choice": "happened", "reason": "ch_9 is there", "answer": `{"charge":"ch_9"}`, tokenField: ada.form("/sign-out").values().Get(tokenField)} {
		form.Set(name, value)
	}
	ada.post("/key/settle", form).is(http.StatusConflict)
	if r := get(t, s, k); string(r.Outcome.Body) != `{"charge":"ch_9"}` || r.Reason != "completed by dee: ch_9 is there" {
		t.Errorf("it has %q, %q", r.Outcome.Body, r.Reason)
	}
}

// stalled is a browser that does not read the answer.
type stalled struct {
	*httptest.ResponseRecorder
	begun, end chan struct{}
}

func (w stalled) Write(b []byte) (int, error) {
	close(w.begun)
	<-w.end
	return len(b), nil
}

func TestABrowserThatDoesNotReadKeepsNobodyFromDeciding(t *testing.T) {
	s, c, k, _ := bench(t)
	dee, ada := as(t, c, decideToken), as(t, c, adminToken)
	for _, b := range []*browser{dee, ada} {
		b.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "not there")
	}
	form := dee.form("/key/settle").values()
	form.Set("version", "of something else")
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9470/key/settle", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(dee.cookies[cookieHere])
	w := stalled{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	ended := make(chan struct{})
	go func() { defer close(ended); c.ServeHTTP(w, r) }()
	<-w.begun
	ada.fill("/key/settle").is(http.StatusOK)
	close(w.end)
	<-ended
	if r := get(t, s, k); r.Reason != "released by ada: not there" {
		t.Errorf("the reason is %q", r.Reason)
	}
}

// A new attempt has begun while somebody looked at the old one.
func TestADecisionIsForTheAttemptThatWasShown(t *testing.T) {
	s, c, k, _ := bench(t)
	b := as(t, c, decideToken)
	b.get(c.keyLink(k)).fill("/key/confirm", "choice", "happened", "reason", "seen")
	was := get(t, s, k)
	if _, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k.Key, Owner: [16]byte{7}, Attempt: was.Attempt}, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	b.fill("/key/settle").is(http.StatusConflict).shows("Attempt 2 is at work")
	if r := get(t, s, k); r.Status != once.Running || r.Attempt != 2 {
		t.Errorf("it is %v, attempt %d", r.Status, r.Attempt)
	}
}

// racing changes a record after the console has read it, and before it settles.
type racing struct {
	*memstore.Store
	before func()
}

func (s *racing) Settle(ctx context.Context, set once.Settlement) error {
	if s.before != nil {
		s.before()
	}
	return s.Store.Settle(ctx, set)
}

func TestAChangeAtTheLastMomentIsNoticed(t *testing.T) {
	s := &racing{Store: memstore.New(nil)}
	k := keyRef{"s", once.Key{Operation: "pay", ID: "1"}}
	unknown(t, s.Store, k.Key)
	c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}, Write: true})
	b := as(t, c, decideToken)
	b.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "seen")
	s.before = func() {
		if _, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k.Key, Owner: [16]byte{7}, Attempt: 1}, Lease: time.Hour}); err != nil {
			t.Error(err)
		}
	}
	b.fill("/key/settle").is(http.StatusConflict).shows("Nothing was changed", "Attempt 2 is at work")
}

func TestAStoreThatFailsInADecision(t *testing.T) {
	s := &ailing{Store: memstore.New(nil)}
	k := keyRef{"s", once.Key{Operation: "pay", ID: "1"}}
	unknown(t, s.Store, k.Key)
	c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}, Write: true})
	b := as(t, c, decideToken)
	b.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "not there")
	page := b.page
	s.down = true
	b.fill("/key/settle").is(http.StatusServiceUnavailable).shows("The store s does not answer", "Nothing was changed")
	s.down = false
	b.page = page
	b.fill("/key/settle").is(http.StatusOK).shows("You have released this key")
}

// lost is a store whose answer to a settlement is lost, and then those to as many
// reads.
type lost struct {
	*memstore.Store
	reads *int
}

var errReset = errors.New("connection reset")

func (s lost) Settle(ctx context.Context, set once.Settlement) error {
	_ = s.Store.Settle(ctx, set) // applied
	*s.reads = -*s.reads
	return errReset
}

func (s lost) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if *s.reads < 0 {
		*s.reads++
		return once.Record{}, errReset
	}
	return s.Store.Get(ctx, k)
}

func TestALostReplyIsNotTakenForAnAnswer(t *testing.T) {
	for _, reads := range []int{0, 1} {
		s := lost{memstore.New(nil), &reads}
		k := keyRef{"s", once.Key{Operation: "pay", ID: "1"}}
		unknown(t, s.Store, k.Key)
		c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}, Write: true})
		b := as(t, c, decideToken)
		b.get(c.keyLink(k)).fill("/key/confirm", "choice", "not-happened", "reason", "not there")
		confirm, wasDown := b.page, reads > 0
		b.fill("/key/settle")
		if !wasDown {
			b.is(http.StatusOK).shows("You have released this key", "released by dee: not there")
			continue
		}
		b.is(http.StatusServiceUnavailable).shows("It is not known whether this was recorded")
		b.get("/audit").shows("tried to have it released")
		b.get(c.keyLink(k)).shows("You have tried to have it released", "released by dee: not there")
		b.page = confirm
		b.fill("/key/settle").is(http.StatusOK).shows("You have released this key before")
	}
}

func TestWhoCannotDecideLearnsWhy(t *testing.T) {
	s, c, k, _ := bench(t)
	if b := as(t, c, lookToken).get(c.keyLink(k)).shows("you need the role decide"); b.form("/key/confirm") != nil {
		t.Error("the role look is offered to decide")
	}
	c = open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	if b := as(t, c, adminToken).get(c.keyLink(k)).shows("The console is read-only"); b.form("/key/confirm") != nil {
		t.Error("a console that is read-only offers to decide")
	}
}
