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
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func shelve(t *testing.T, s store.Shelf, ms ...store.Shelved) {
	t.Helper()
	for i := range ms {
		if ms[i].State == 0 {
			ms[i].State = store.Parked
		}
		if ms[i].Message.Topic == "" {
			ms[i].Message.Topic = "orders"
		}
	}
	if err := s.Shelve(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
}

// parked returns n messages of a consumer, m0 and so on.
func parked(consumer string, n int) (ms []store.Shelved) {
	for i := range n {
		ms = append(ms, store.Shelved{Consumer: consumer, Reason: "no such customer", Message: broker.Message{ID: fmt.Sprint("m", i), Body: []byte(`{"n":1}`)}})
	}
	return ms
}

func onShelfNow(t *testing.T, s store.Shelf) map[string]store.Shelved {
	t.Helper()
	ms, err := s.Shelved(t.Context(), store.ShelfQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]store.Shelved)
	for _, m := range ms {
		all[m.Message.ID] = m
	}
	return all
}

// count returns how many messages on the shelf are in a state.
func countIn(t *testing.T, s store.Shelf, state store.ShelfState) (n int) {
	for _, m := range onShelfNow(t, s) {
		if m.State == state {
			n++
		}
	}
	return n
}

func put(t *testing.T, s *memstore.Store, cause string, ms ...broker.Message) {
	t.Helper()
	tx := s.Begin()
	defer tx.Rollback()
	for _, m := range ms {
		if m.Topic == "" {
			m.Topic = "mail"
		}
		if err := s.PutTx(t.Context(), tx, []store.Outgoing{{Message: m, Cause: cause}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func outgoing(t *testing.T, s store.Relayable, state store.OutgoingState) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: state, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// ended waits for the end of a job.
func ended(t *testing.T, c *Console, number int) *job {
	t.Helper()
	j := c.jobs.numbered(number)
	if j == nil {
		t.Fatalf("there is no job %d", number)
	}
	testenv.Await(t, "the job ends", func() bool { return !j.isWorking() })
	return j
}

func TestParkedMessagesAreListed(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 60)...)
	shelve(t, s, store.Shelved{Consumer: "mail", Message: broker.Message{ID: "pay", Topic: "letters", OrderingKey: "ann"}},
		store.Shelved{Consumer: "mail", Message: broker.Message{ID: "p\u0430y", Topic: "letters"}},
		store.Shelved{Consumer: "mail", State: store.Waiting, Message: broker.Message{ID: "later"}})
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken)
	b.follow("Parked messages").is(200).shows("m0", "m49", "no such customer", "Replay all of them").hides("m50", "later")
	b.follow("Next page").shows("m50", "m59", "First page", "mail").hides("m49", "Next page")
	b.fill("/messages", "consumer", "mail").shows("pay", `"p\u0430y"`, "Discard all that match").hides("m1", "p\u0430y")
	b.fill("/messages", "order", "ann").shows("pay").hides(`\u0430`)
	b.fill("/messages", "order", "", "topic", "letters").shows("pay", `p\u0430y`)
	b.fill("/messages", "id", "pay ").shows("begins or ends with a space")
	b.fill("/messages", "topic", "", "id", "pay").shows("pay").hides("Next page")
	b.get("/messages?consumer=mail").follow("waiting").shows("later").hides("Replay all", "p\u0430y")
	b.get("/messages?state=nonsense").is(400)
	b.get("/messages?after=-1").is(400)

	for _, b := range []*browser{as(t, c, lookToken), as(t, open(t, Options{Stores: c.o.Stores}), adminToken)} {
		b.get("/messages?consumer=mail").is(200).shows("pay").hides("Replay", "Discard")
		b.follow("pay").is(200).hides("Replay", "Discard")
		b.get("/change?of=messages&do=replay").is(http.StatusForbidden)
	}
	b.get("/change?of=messages&do=discard").is(400).shows("Discard messages of one consumer")
	b.get("/messages").shows("filter by their consumer first").hides("Discard all")
}

func TestAMessageIsShown(t *testing.T) {
	s, other := memstore.New(nil), memstore.New(nil)
	cause := once.Key{Scope: "acme", Operation: "order", ID: "4711"}
	work(t, other, cause)
	shelve(t, s, store.Shelved{Consumer: "billing", Key: "4711-paid", Reason: store.UnknownOutcome + "timed\nout", Attempts: 3, Origin: "orders-1",
		History: "2026 replayed by ann: <b>why</b>\n2026 replayed by bob: x", Message: broker.Message{ID: "<script>alert(1)</script>", OrderingKey: "o\u202e1",
			Body: []byte(`{"card":"4242","html":"</pre><script>alert(2)</script>"}`), Header: map[string]string{"content-type": "application/json", "authorization": "secret", store.KeyHeader: cause.String()}}})
	var log logtest.Log
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}, {Name: "orders", Store: other}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := as(t, c, decideToken).get("/messages").follow("<script>")
	b.is(200).shows("Message <script>alert(1)</script>", "may have happened", "timed out", "billing 4711-paid", "order 4711", "of acme", "orders-1", `"o\u202e1"`,
		"replayed by ann: <b>why</b>", "replayed by bob", "authorization").hides("4242", "secret", "<script>alert")
	for _, a := range b.page.all("a") {
		if a.content() == "order 4711" && !strings.Contains(a.attr["href"], "store=orders") {
			t.Errorf("the cause leads to %s", a.attr["href"])
		}
	}
	b.fill("/messages/message").is(200).shows(`"card": "4242"`, "</pre><script>alert(2)</script>", "secret", "Shown as JSON").hides("<script>alert")
	if !strings.Contains(log.String(), "looked at the payload") || strings.Contains(log.String(), "4242") {
		t.Errorf("logged %s", log.String())
	}
	b.get("/audit").shows("looked at the payload of message")

	look := as(t, c, lookToken).get("/messages").follow("<script>").shows("you need the role decide").hides("Show payload", "4242")
	token := look.form("/sign-out").values().Get(tokenField)
	look.post("/messages/message?consumer=billing&id="+url.QueryEscape("<script>alert(1)</script>"), url.Values{tokenField: {token}}).is(403).hides("4242")

	b.get("/messages/message?consumer=billing&id=none").is(404)
	b.get("/messages/message").is(400)
}

// work leaves a record of a key that is done.
func work(t *testing.T, s once.Store, k once.Key) {
	t.Helper()
	op := &once.Operation[string]{Name: k.Operation, OnUnknown: once.Resend}
	_, err := once.Do(t.Context(), s, op.For(k.ID).In(k.Scope), func(context.Context, once.Key) (string, error) { return "done", nil })
	if err != nil {
		t.Fatal(err)
	}
}

func TestPayloadsAreShownSafely(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for name, test := range map[string]struct {
		body, kind, form, text string
		cut                    bool
	}{
		"JSON":             {`{"a":[1,"x"]}`, "application/vnd.x+json; charset=utf-8", "JSON", "{\n  \"a\": [\n    1,\n    \"x\"\n  ]\n}", false},
		"JSON untold":      {`{"a":1}`, "", "JSON", "{\n  \"a\": 1\n}", false},
		"JSON told as XML": {`{"a":1}`, "text/xml", "text", `{"a":1}`, false},
		"not JSON":         {`{"a":`, "application/json", "text", `{"a":`, false},
		"deep":             {deep, "application/json", "text", deep, false},
		"bidi":             {"a\u202eb\x1b[2J\nc", "text/plain", "text", "a\\u202eb\\x1b[2J\nc", false},
		"bytes":            {"\x00\xff<b>", "text/plain", "bytes", "00000000  00 ff 3c 62 3e                                    |..<b>|\n", false},
		"empty":            {"", "", "text", "", false},
		"long":             {strings.Repeat("é", maxPayload), "text/plain", "text", strings.Repeat("é", maxPayload/2-1), true},
	} {
		form, text, cut := formatted([]byte(test.body), test.kind)
		if form != test.form || text != test.text || cut != test.cut {
			t.Errorf("%s: %s, %v, %.200q", name, form, cut, text)
		}
	}
	if _, text, cut := formatted([]byte(strings.Repeat("\xff", 10<<20)), ""); !cut || len(text) > 2*maxPayload {
		t.Errorf("%d bytes are shown", len(text))
	}
}

func TestAllThatMatchAreReplayed(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 5)...)
	shelve(t, s, store.Shelved{Consumer: "billing", Reason: store.UnknownOutcome + "timed out", Message: broker.Message{ID: "u"}},
		store.Shelved{Consumer: "mail", Message: broker.Message{ID: "other"}})
	var log logtest.Log
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := as(t, c, decideToken).get("/jobs").shows("No job has run yet").get("/messages?consumer=billing").follow("Replay all that match").is(200)
	b.shows("Match Would be replayed Outcome unknown 6 5 1", "consumer billing", "of the store shop", "If one of them did happen")
	b.fill("/change", "reason", " ").is(400).shows("Give a reason")
	b.fill("/change", "reason", strings.Repeat("x", longestReason+1)).is(400).shows("only 400 are stored")
	b.fill("/change", "reason", "fixed", "rate", "-1").is(400).shows("The rate is -1")
	b.fill("/change", "reason", "fixed", "rate", "NaN").is(400).shows("The rate is NaN")
	b.fill("/change", "reason", "fixed", "rate", "", "limit", "x").is(400).shows("The limit is x")
	b.fill("/change", "reason", "fixed in <1.42>", "rate", "1000", "limit", "").is(200)
	b.shows("Will be replayed 5 messages, of 6 that match", "Stay parked 1, because their outcome is unknown", "consumer billing", "fixed in <1.42>",
		"at most 1000 per second", "m0", "m4", "u may have happened", "Yes, replay 5").hides("other", "You assert")
	if n := countIn(t, s, store.Parked); n != 7 {
		t.Errorf("%d are parked before anybody said yes", n)
	}
	b.fill("/jobs").is(200)
	ended(t, c, 1)
	b.get("/job?number=1").is(200).shows("Job 1: replay parked messages", "finished", "replayed 5 of 6", "Outcome unknown 1", "By dee", "fixed in <1.42>").hides("http-equiv", "Stop<")
	b.get("/jobs").shows("finished", "dee", "5 of 5", "replay: consumer billing")
	b.get("/audit").shows("began job 1: replay 5 messages", "job 1 finished: 5 of 6 messages were replayed")
	for id, m := range onShelfNow(t, s) {
		if want := map[bool]store.ShelfState{true: store.Waiting, false: store.Parked}[strings.HasPrefix(id, "m")]; m.State != want {
			t.Errorf("%s is %v", id, m.State)
		} else if want == store.Waiting && !strings.Contains(m.History, "replayed by dee: fixed in <1.42>") {
			t.Errorf("the history of %s is %q", id, m.History)
		}
	}
	for _, want := range []string{"console: a job ended", "changed=5", "by=dee"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q was not logged: %s", want, log.String())
		}
	}

	b.get("/messages?consumer=billing").follow("Replay all that match").fill("/change", "reason", "x").shows("none would be replayed")
	b.get("/messages?consumer=billing").follow("Replay all that match").fill("/change", "reason", "asked the bank", "notdone", "yes").shows("You assert", "Yes, replay 1")
	b.fill("/jobs")
	ended(t, c, 2)
	if m := onShelfNow(t, s)["u"]; m.State != store.Waiting || !strings.Contains(m.History, "did not happen") {
		t.Errorf("u is %v, %s", m.State, m.History)
	}
	b.get("/change?of=messages&do=replay&consumer=billing").shows("No message matches by now")
}

// To discard a message that may have happened records that it did not.
func TestADiscardSaysWhatMayHaveHappened(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 30)...)
	shelve(t, s, store.Shelved{Consumer: "billing", Reason: store.UnknownOutcome + "timed out", Message: broker.Message{ID: "u"}})
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/messages?consumer=billing").follow("Discard all that match").shows("1 of them may have happened")
	b.fill("/change", "reason", "tests").shows("May have happened 1 of them", "complete its key first")
	b.get("/messages?consumer=billing").follow("Discard all that match").fill("/change", "reason", "tests", "limit", "30").hides("May have happened")
	b.get("/messages?consumer=billing").follow("Replay all that match").fill("/change", "reason", "asked", "notdone", "yes").shows("those with an unknown outcome, 1, did not happen")
}

func TestADiscardSettlesKeys(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 3)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/messages?consumer=billing").follow("Discard all that match").hides("notdone", "per second")
	b.fill("/change", "reason", "tests", "limit", "2", "notdone", "yes", "rate", "5").shows("Will be discarded 2 messages, of 2", "Limit 2").hides("You assert").fill("/jobs")
	ended(t, c, 1)
	if n := countIn(t, s, store.Discarded); n != 2 {
		t.Errorf("%d are discarded", n)
	}
	b.get("/messages?consumer=billing").follow("m2").follow("Discard…").fill("/change", "reason", "tests").fill("/jobs")
	ended(t, c, 2)
	if n := countIn(t, s, store.Discarded); n != 3 {
		t.Errorf("%d are discarded", n)
	}
}

func TestTheOutboxIsRepaired(t *testing.T) {
	s := memstore.New(nil)
	put(t, s, store.FormatCause(once.Key{Operation: "order", ID: "7"}), broker.Message{ID: "letter-1", Body: []byte("hello")}, broker.Message{ID: "letter-2"}, broker.Message{ID: "invoice", Topic: "other"})
	leases := store.Leases{Relays: 1}
	leases.Lanes[3] = store.LaneLease{Relay: [16]byte{0xab}, Left: time.Minute}
	leases.Lanes[4] = store.LaneLease{Relay: [16]byte{0xab}, Left: -time.Minute}
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s, Leases: func(context.Context) (store.Leases, error) { return leases, nil }}}})
	b := as(t, c, decideToken).follow("Outbox").shows("No message is stuck", "pending 3", "1 relay is alive", "ab000000 3 for 60 s", "ab000000 4 lapsed", "nobody")
	b.get("/outbox?state=pending").shows("letter-1", "order 7", "mail").fill("/outbox", "topic", "mail").hides("invoice").follow("Park all that match")
	b.shows("2 2", "may still be published").fill("/change", "reason", "wrong template").shows("Will be parked 2 messages").fill("/jobs")
	ended(t, c, 1)
	if ms := outgoing(t, s, store.Stuck); len(ms) != 2 || !strings.Contains(ms[0].Reason, "parked by dee: wrong template") {
		t.Fatalf("stuck are %v", ms)
	}
	b.get("/outbox").shows("Retry all of them", "Discard all of them", "wrong template").hides("The last failure").follow("letter-1").shows("Message letter-1", "order 7", "stuck").hides("hello")
	b.fill("/outbox/message").shows("hello", "Shown as text")
	b.follow("Retry…").fill("/change", "reason", "right now").fill("/jobs")
	ended(t, c, 2)
	if ms := outgoing(t, s, store.Held); len(ms) != 1 || ms[0].Message.ID != "letter-1" {
		t.Errorf("held are %v", ms)
	}
	b.get("/outbox").follow("Discard all of them").fill("/change", "reason", "gone").shows("everything").fill("/jobs")
	ended(t, c, 3)
	if n := len(outgoing(t, s, store.Stuck)); n != 0 {
		t.Errorf("%d are stuck", n)
	}
	b.get("/job?number=3").shows("discarded 1 of 1")
	b.get("/outbox/message?id=letter-2").is(404).get("/outbox/message").is(400).get("/outbox/message?id=letter-1&seq=x").is(400)
	b.get("/change?of=outbox&do=park&state=stuck").is(400)
	b.get("/change?of=outbox&do=nothing").is(400)
	look := as(t, c, lookToken).get("/outbox?state=pending").shows("invoice").hides("Park all")
	look.follow("invoice").hides("Park…", "Show payload")
}

// Two messages may have one id: the link leads to one of them, and names the other.
func TestMessagesWithOneIDAreToldApart(t *testing.T) {
	s := memstore.New(nil)
	put(t, s, "", broker.Message{ID: "twin", Topic: "first"}, broker.Message{ID: "twin", Topic: "second"})
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
	b.get("/outbox/message?id=twin&seq=2").shows("second", "Others with this id pending").hides("first")
	b.follow("pending, put").shows("first")
}

// While the question is on the screen, one message is decided about by somebody else,
// one is parked again, and one is new: only the one that is as it was is changed.
func TestOnlyCountedMessagesAreChanged(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 3)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/change?of=messages&do=replay&consumer=billing").fill("/change", "reason", "r")
	now := onShelfNow(t, s)
	decided, again := now["m0"], now["m1"]
	decided.State, again.Reason = store.Discarded, "again"
	for _, m := range []store.Shelved{decided, again} {
		if err := s.Change(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	shelve(t, s, store.Shelved{Consumer: "billing", Message: broker.Message{ID: "new"}})
	b.fill("/jobs")
	ended(t, c, 1)
	b.get("/job?number=1").shows("replayed 1 of 3", "Changed by others 2")
	for id, want := range map[string]store.ShelfState{"m0": store.Discarded, "m1": store.Parked, "m2": store.Waiting, "new": store.Parked} {
		if got := onShelfNow(t, s)[id].State; got != want {
			t.Errorf("%s is %v, want %v", id, got, want)
		}
	}
}

func TestAnAnswerIsForWhoWasAskedAndOnce(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 1)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/change?of=messages&do=replay").fill("/change", "reason", "r")
	plan := b.form("/jobs").values().Get("plan")
	other := as(t, c, adminToken)
	token := other.form("/sign-out").values().Get(tokenField)
	other.post("/jobs", url.Values{tokenField: {token}, "plan": {plan}}).is(http.StatusConflict)
	other.post("/jobs", url.Values{tokenField: {token}}).is(http.StatusConflict)
	form := b.form("/jobs").values()
	b.post("/jobs", form).is(200)
	ended(t, c, 1)
	if b.post("/jobs", form).is(200); b.at != "/job?number=1" || c.jobs.last != 1 {
		t.Errorf("a second click leads to %s", b.at)
	}
	shelve(t, s, store.Shelved{Consumer: "mail", Message: broker.Message{ID: "late"}})
	b.get("/change?of=messages&do=replay").fill("/change", "reason", "r")
	c.jobs.asked[0].At = c.jobs.asked[0].At.Add(-planTime - time.Second)
	b.fill("/jobs").is(http.StatusConflict).shows("Count again")
	if n := countIn(t, s, store.Parked); n != 1 {
		t.Errorf("%d are parked", n)
	}
}

// begin starts a job by forms, and returns its number.
func begin(t *testing.T, c *Console, b *browser, from string, pairs ...string) int {
	t.Helper()
	b.get(from).fill("/change", append([]string{"reason", "r"}, pairs...)...).fill("/jobs").is(200)
	return c.jobs.latest()[0].Number
}

func TestAJobIsStoppedInTheMiddle(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 4)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken)
	n := begin(t, c, b, "/change?of=messages&do=replay", "rate", "0.001") // the second one would be after 1,000 s
	testenv.Await(t, "the first is replayed", func() bool { return countIn(t, s, store.Waiting) == 1 })
	testenv.Await(t, "the page says so", func() bool {
		b.get(fmt.Sprint("/job?number=", n))
		return strings.Contains(b.page.content(), "1 of 4 dealt with")
	})
	b.shows("running").hides("finished")
	if len(b.page.all("progress")) != 1 || !strings.Contains(b.text, `<noscript><meta http-equiv="refresh" content="2"></noscript>`) {
		t.Errorf("the page does not go on by itself:\n%s", b.text)
	}
	as(t, c, lookToken).get(b.at).shows("running").hides("Stop<")
	ada := as(t, c, adminToken).get(b.at)
	ada.fill("/job").is(200)
	ended(t, c, n)
	b.get(b.at).shows("stopped", "Stopped by ada", "replayed 1 of 4", "Not replayed 3", "See what is left").hides("http-equiv")
	if w, p := countIn(t, s, store.Waiting), countIn(t, s, store.Parked); w != 1 || p != 3 {
		t.Errorf("%d wait and %d are parked", w, p)
	}
	b.get("/audit").shows("stopped job 1", "job 1 stopped: 1 of 4 messages were replayed")
	b.get("/job?number=7").is(404).get("/job?number=x").is(404)
}

func TestTheRateIsKept(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		shelve(t, s, parked("billing", 21)...)
		put(t, s, "", broker.Message{ID: "a"}, broker.Message{ID: "b"}, broker.Message{ID: "c"})
		if n, err := s.MoveOutgoing(t.Context(), [16]byte{}, outgoing(t, s, store.Pending), store.Stuck); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
		b := as(t, c, decideToken)
		for _, test := range []struct {
			from, rate string
			least      time.Duration
		}{
			{"/change?of=messages&do=replay", "80", 13 * time.Second / 80}, // a burst of 8, which takes no time, and 13 more
			{"/change?of=outbox&do=retry", "8", 2 * time.Second / 8},
		} {
			begun := time.Now()
			j := ended(t, c, begin(t, c, b, test.from, "rate", test.rate))
			if took := time.Since(begun); j.state != jobFinished || j.tally.Changed != j.Tally.Matched || took < test.least {
				t.Errorf("%s: %s after %v, which is faster than %v: %+v", test.from, j.state, took, test.least, j.tally)
			}
		}
	})
}

// shelfThatFails fails at the change of one message.
type shelfThatFails struct {
	*memstore.Store
	mu   sync.Mutex
	left int
	with func() error
}

func (s *shelfThatFails) Change(ctx context.Context, m store.Shelved) error {
	s.mu.Lock()
	s.left--
	fails := s.left < 0
	s.mu.Unlock()
	if fails {
		return s.with()
	}
	return s.Store.Change(ctx, m)
}

func TestAJobEndsWhenItsStoreFails(t *testing.T) {
	for name, how := range map[string]struct {
		with func() error
		says string
	}{
		"fails":  {func() error { return errors.New("connection <b>refused</b>\x1b") }, "connection <b>refused</b>"},
		"panics": {func() error { panic("connection <b>refused</b>") }, "the store panicked, see the log"},
	} {
		s := &shelfThatFails{Store: memstore.New(nil), left: 2, with: how.with}
		shelve(t, s, parked("billing", 5)...)
		var log logtest.Log
		c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		b := as(t, c, decideToken)
		j := ended(t, c, begin(t, c, b, "/change?of=messages&do=replay"))
		b.get("/job?number=1").shows("failed", "2 of 5 replayed", "Not replayed", "the store failed", how.says).hides("\x1b", "<b>refused")
		if j.state != jobFailed || !strings.Contains(log.String(), "console: a job failed") || name == "fails" && !strings.Contains(j.trouble, `at message "m2"`) {
			t.Errorf("%s: %s: %s", name, j.state, j.trouble)
		}
		s.mu.Lock()
		s.left = 100 // it is back
		s.mu.Unlock()
		ended(t, c, begin(t, c, b, "/change?of=messages&do=replay"))
		b.get("/job?number=2").shows("finished", "replayed 3 of 3")
	}
}

// Eight people begin the same at once, half of them to replay, and half to discard.
func TestJobsThatOverlapDoubleNothing(t *testing.T) {
	const messages, crowd = 40, 8
	s := memstore.New(nil)
	shelve(t, s, parked("billing", messages)...)
	var people []Person
	for i := range crowd {
		people = append(people, Person{fmt.Sprint("p", i), Decide, fmt.Sprintf("token-of-person-number-%d", i)})
	}
	c := open(t, Options{Write: true, People: people, Stores: []Store{{Name: "shop", Store: s}}})
	var asked []*browser
	for i, p := range people {
		do := []string{"replay", "discard"}[i%2]
		asked = append(asked, as(t, c, p.Token).get("/change?of=messages&consumer=billing&do="+do).fill("/change", "reason", "r"))
	}
	var wg sync.WaitGroup
	for _, b := range asked {
		wg.Add(1)
		go func() {
			defer wg.Done()
			b.post("/jobs", b.form("/jobs").values())
		}()
	}
	wg.Wait()
	sum := 0
	for n := 1; n <= crowd; n++ {
		j := ended(t, c, n)
		if sum += j.tally.Changed; j.state != jobFinished || j.tally.Changed+j.tally.Moved != messages {
			t.Errorf("job %d %s: %+v", n, j.state, j.tally)
		}
	}
	if sum != messages {
		t.Errorf("%d changes of %d messages", sum, messages)
	}
	for id, m := range onShelfNow(t, s) {
		if m.Version != 2 || strings.Count(m.History, "\n") != 0 {
			t.Errorf("%s has version %d, and the history %q", id, m.Version, m.History)
		}
	}
}

func TestCloseEndsJobs(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 2)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken)
	n := begin(t, c, b, "/change?of=messages&do=replay", "rate", "0.001")
	testenv.Await(t, "the first is replayed", func() bool { return countIn(t, s, store.Waiting) == 1 })
	b.get("/change?of=messages&do=replay").fill("/change", "reason", "r")
	c.Close()
	if j := c.jobs.numbered(n); j.isWorking() || j.state != jobStopped || j.tally.Changed != 1 {
		t.Errorf("job %d is %s: %+v", n, j.state, j.tally)
	}
	b.fill("/jobs").is(http.StatusConflict)
	b.get("/job?number=1").shows("Stopped by the end of this console")
}

// hangingShelf never answers a change.
type hangingShelf struct {
	*memstore.Store
	reached chan struct{}
}

func (s hangingShelf) Change(ctx context.Context, _ store.Shelved) error {
	close(s.reached)
	<-ctx.Done()
	return ctx.Err()
}

func TestAStopGivesUpAStoreThatDoesNotAnswer(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		s := hangingShelf{memstore.New(nil), make(chan struct{})}
		shelve(t, s, parked("billing", 2)...)
		c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
		b := as(t, c, decideToken)
		begin(t, c, b, "/change?of=messages&do=replay")
		<-s.reached
		b.get("/job?number=1").fill("/job").shows("It ends after the message")
		begun := time.Now()
		if ended(t, c, 1); time.Since(begun) < stopTime-time.Second {
			t.Errorf("it was given up after %v", time.Since(begun))
		}
		b.get("/job?number=1").shows("failed", "did not answer for 15 s after the stop")
	})
}

func TestTheMemoryForJobsIsBounded(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 1)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/change?of=messages&do=replay&consumer=billing").fill("/change", "reason", "r")
	for range 2 * maxPlans {
		b.get("/change?of=messages&do=replay&consumer=billing").fill("/change", "reason", "r")
	}
	if n := len(c.jobs.asked); n != maxPlans {
		t.Errorf("%d plans are kept", n)
	}
	big := &plan{At: time.Now(), Tally: tally{Matched: maxCounted}}
	for range 5 {
		c.jobs.ask(big)
	}
	if n := c.jobs.counted(); n > maxAsked {
		t.Errorf("%d messages are kept", n)
	}
	c.jobs.asked = nil

	now := time.Now()
	start := func() (*job, error) {
		p := &plan{By: "dee", At: now}
		c.jobs.ask(p)
		j, _, err := c.jobs.begin(p.id, "dee", now)
		return j, err
	}
	for range maxRunning {
		j, err := start()
		if err != nil {
			t.Fatal(err)
		}
		defer c.jobs.running.Done()
		defer j.cancel()
	}
	if _, err := start(); !errors.Is(err, errTooMany) {
		t.Errorf("one job more: %v", err)
	}
	c.jobs.all[0].ended = now
	for range 2 * maxJobs {
		j, err := start()
		if err != nil {
			t.Fatal(err)
		}
		j.ended = now
		c.jobs.running.Done()
		j.cancel()
	}
	if n := len(c.jobs.all); n != maxJobs || !c.jobs.all[0].isWorking() {
		t.Errorf("%d jobs are kept", n)
	}
	for _, j := range c.jobs.all {
		j.ended = now
	}
	for _, j := range c.jobs.all {
		j.plan.Verb = verbs[0]
	}
	b.get("/jobs").is(200)
}

func TestAResultKeepsNoVersions(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 1)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	j := ended(t, c, begin(t, c, as(t, c, decideToken), "/change?of=messages&do=replay"))
	if j.messages != nil || j.shelf != nil || j.outbox != nil {
		t.Error("the versions of the messages are kept")
	}
}

// bare hides what a store can do besides keys.
type bare struct{ once.Store }

func TestStoresWithoutMessagesSaySo(t *testing.T) {
	c := open(t, Options{Write: true, Stores: []Store{{Name: "keys", Store: bare{memstore.New(nil)}}}})
	b := as(t, c, decideToken)
	for path, want := range map[string]string{"/messages": "shelf for messages", "/outbox": "outbox", "/consumers": "list of consumers"} {
		b.get(path).is(200).shows("There is no "+want+" in the stores of this console", "PostgreSQL").hides("Look in the other stores")
		b.get(path+"?store=keys").is(200).shows("There is no "+want+" in the store keys", "PostgreSQL").hides("Look in the other stores")
		b.get(path + "?store=none").is(404)
	}
	b.get("/change?of=messages&do=replay").is(404)

	c = open(t, Options{Stores: []Store{{Name: "keys", Store: bare{memstore.New(nil)}}, {Name: "shop", Store: memstore.New(nil)}, {Name: "depot", Store: memstore.New(nil)}}})
	b = as(t, c, lookToken).get("/messages").is(200).shows("shop depot").hides(`/messages?state=parked&amp;store=keys`)
	b.get("/messages?store=keys").follow("Look in the other stores").shows("No message is parked")
	b.get("/outbox").shows("Nothing waits", "This store does not say who publishes")
}

func TestConsumersAreShown(t *testing.T) {
	s := memstore.New(nil)
	for _, source := range []string{store.SourceText("rabbitmq queue orders", map[string]string{"vhost": "/"}), "kafka topic <b>"} {
		if _, err := s.Register(t.Context(), store.Consumer{Name: "billing", Source: source, SharedWith: "rabbitmq queue orders"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := (inbox.Admin{Store: s}).SetPosition(t.Context(), store.Position{Consumer: "billing", Partition: "orders 3", Log: "log-1", Offset: 41}); err != nil {
		t.Fatal(err)
	}
	shelve(t, s, parked("billing", 2)...)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, lookToken).follow("Consumers").shows("billing", "rabbitmq queue orders", "vhost /", "kafka topic <b>", "SharedWith", "Rebuild").hides("topic <b>", "not running?")
	b.follow("billing").shows("Consumer billing", "orders 3", "41", "log-1", "parked 2").follow("parked").shows("m1")
	b.get("/consumers/one?name=none").is(404)
	b.get("/consumers/one").is(400)
	as(t, open(t, Options{}), lookToken).get("/consumers").shows("No consumer has run on the store shop yet")
}

func TestRebuildsAreComparedWithTheirConsumer(t *testing.T) {
	s := memstore.New(nil)
	for _, name := range []string{"billing", "billing@v2", "billing@v3", "billings@v2"} {
		if _, err := s.Register(t.Context(), store.Consumer{Name: name, Keys: name, Source: "kafka topic orders group " + name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []store.Position{
		{Consumer: "billing", Partition: "0", Log: "log-1", Offset: 40}, {Consumer: "billing", Partition: "1", Log: "log-1", Offset: 10},
		{Consumer: "billing@v2", Partition: "0", Log: "log-1", Offset: 39}, {Consumer: "billing@v2", Partition: "1", Log: "log-1", Offset: 12},
		{Consumer: "billing@v3", Partition: "0", Log: "an older log", Offset: 99},
	} {
		if err := (inbox.Admin{Store: s}).SetPosition(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
	b.get("/consumers/one?name=billing").is(200).shows("Rebuilds", "billing@v2", "in 1 of 2 partitions", "billing@v3", "in 0 of 2 partitions").hides("billings@v2")
	b.follow("billing@v2").is(200).shows("Consumer billing@v2").hides("Rebuilds")
	b.get("/consumers/one?name=billings%40v2").is(200).hides("Rebuilds")
}

// downStore fails at everything that pages ask of it.
type downStore struct{ *memstore.Store }

var errDialed = errors.New("dial <b>tcp</b>: refused")

func (downStore) Shelved(context.Context, store.ShelfQuery) ([]store.Shelved, error) {
	return nil, errDialed
}
func (downStore) Outgoing(context.Context, store.OutgoingQuery) ([]store.Outgoing, error) {
	return nil, errDialed
}
func (downStore) Consumers(context.Context) ([]store.Consumer, error) { return nil, errDialed }

func TestPagesSayThatAStoreIsDown(t *testing.T) {
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: downStore{memstore.New(nil)}}}})
	b := as(t, c, decideToken)
	for _, path := range []string{"/messages", "/outbox", "/consumers", "/messages/message?consumer=a&id=b", "/outbox/message?id=b", "/consumers/one?name=a",
		"/change?of=messages&do=replay", "/change?of=outbox&do=retry"} {
		b.get(path).is(http.StatusServiceUnavailable).shows("The store shop does not answer", "dial <b>tcp</b>").hides("<b>tcp")
	}
}

// mute is a shelf that does not answer to a change, and does not listen to contexts.
type mute struct {
	*memstore.Store
	begun, end chan struct{}
}

func (s mute) Change(context.Context, store.Shelved) error {
	close(s.begun)
	<-s.end
	return nil
}

// stopTime after the stop, the context of a job ends.
func TestAJobGivesUpAStoreThatNeverAnswers(t *testing.T) {
	s := mute{memstore.New(nil), make(chan struct{}), make(chan struct{})}
	shelve(t, s.Store, parked("billing", 3)...)
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/messages?consumer=billing").follow("Replay all that match").fill("/change", "reason", "x").fill("/jobs")
	<-s.begun
	b.fill("/job").shows("It ends after the message that it is at")
	c.jobs.numbered(1).cancel()
	ended(t, c, 1)
	c.Close()
	b.get("/job?number=1").shows("failed", "replayed 0 of 3", "The message that it was at may be changed already")
	close(s.end)
}

// What a relay met last is on the page, whichever state is listed.
func TestTheLastFailureOfARelayIsShown(t *testing.T) {
	s := memstore.New(nil)
	op := &once.Operation[int]{Name: "order"}
	if _, err := once.DoTx(t.Context(), s, op.For("1"), func(ctx context.Context, tx *memstore.Tx) (int, error) {
		return 0, outbox.New(s, nil).Put(ctx, tx, &broker.Message{ID: "m-1", Topic: "nowhere"})
	}); err != nil {
		t.Fatal(err)
	}
	ms := outgoing(t, s, store.Pending)
	ms[0].Attempts, ms[0].Reason = 3, "no queue takes it: NO_ROUTE"
	if _, err := s.MoveOutgoing(t.Context(), [16]byte{}, ms, store.Held); err != nil {
		t.Fatal(err)
	}
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
	b.get("/outbox").is(http.StatusOK).shows("The last failure", "m-1 to nowhere", "no queue takes it: NO_ROUTE")
}
