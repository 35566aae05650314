package console

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// failedShop parks messages of two consumers that failed for three causes, of which one
// leaves open what happened. Their reasons are sealed if the store seals.
func failedShop(t *testing.T, s *memstore.Store) {
	t.Helper()
	var ms []store.Shelved
	add := func(n int, consumer, reason string) {
		for range n {
			id := fmt.Sprint("m", len(ms))
			ms = append(ms, store.SealShelved(&s.Options().Sealing, store.Shelved{Consumer: consumer, Reason: fmt.Sprintf(reason, len(ms)), Message: broker.Message{ID: id}}))
		}
	}
	add(2, "billing", "no such customer c-%d")
	add(3, "billing", "the bank said: status 503, request %d")
	add(2, "mail", "no such customer c-%d")
	add(1, "billing", store.UnknownOutcome+"the bank said: status 503, request %d")
	shelve(t, s, ms...)
}

func groupOf(reason string) string { return alike.ID(alike.Text(reason)) }

// sealing returns stores that seal, and do not.
func sealing(t *testing.T) map[string]*memstore.Store {
	t.Helper()
	ring, err := once.NewRing(once.Secret{ID: "a", Bytes: bytes.Repeat([]byte("k"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	o := new(memstore.Options)
	o.Sealing.Ring = ring
	return map[string]*memstore.Store{"plain": memstore.New(nil), "sealed": memstore.New(o)}
}

// Whoever is on call sees by how many causes messages failed, and replays those of one
// cause. The others stay parked, and no URL and no log has a reason.
func TestMessagesThatFailedAlikeAreReplayed(t *testing.T) {
	for name, s := range sealing(t) {
		t.Run(name, func(t *testing.T) {
			failedShop(t, s)
			var log logtest.Log
			c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
			b := as(t, c, decideToken).get("/messages").is(200)
			b.shows("Failed alike 4 no such customer …", "of billing, mail 3 the bank said: status 503, request …", "of billing 1 may have happened unknown outcome: the bank said: status 503, request …").hides("Remove")
			b.follow("no such customer …").is(200).shows("Failed alike: no such customer …", "m0", "m1", "m5", "m6", "Replay all that match").hides("m2", "m7", "No message")
			b.fill("/messages", "consumer", "mail").shows("m5", "m6", "Failed alike: no such customer …").hides("m0", "the bank")
			b.follow("Remove").shows("m5").hides("Remove", "Failed alike")
			b.get("/messages").follow("no such customer …").fill("/messages", "consumer", "billing").hides("m5").follow("Discard all that match").shows("2 2").get("/messages")

			b.follow("the bank said").follow("Replay all that match").is(200).shows("Selected: failed alike the bank said: status 503, request … , in the state parked", "Match Would be replayed Outcome unknown 3 3 0")
			b.fill("/change", "reason", "the bank is back", "notdone", "yes", "rate", "1000").is(200)
			b.shows("Will be replayed 3 messages, of 3 that match", "failed alike the bank said: status 503, request …", "m2", "m3", "m4", "Yes, replay 3").hides("m0", "m7")
			seen := b.text
			b.fill("/jobs").is(200)
			ended(t, c, 1)
			b.get("/job?number=1").shows("finished", "replayed 3 of 3", "failed alike the bank said: status 503, request …")
			b.get("/jobs").shows("replay: failed alike the bank said")
			b.get("/audit").shows("began job 1: replay 3 messages that failed alike: the bank said", "job 1 finished: 3 of 3 messages were replayed that failed alike: the bank said")
			for id, m := range onShelfNow(t, s) {
				want := store.Parked
				if id == "m2" || id == "m3" || id == "m4" {
					want = store.Waiting
				}
				if m.State != want {
					t.Errorf("%s is %v", id, m.State)
				}
			}
			b.get("/messages?alike="+groupOf("the bank said: status 503, request 1")).is(200).shows("No message that failed alike, and matches, is parked now", "Failed alike 4 no such customer").hides("Replay")
			b.get("/messages?state=waiting&alike="+groupOf("the bank said: status 503, request 1")).shows("m2", "Failed alike: the bank said")
			b.follow("m2").follow("Failed alike").shows("m2", "m3", "m4")
			for _, text := range []string{"bank said", "customer"} {
				if strings.Contains(log.String(), text) {
					t.Errorf("%q is in the log: %s", text, log.String())
				}
			}
			if want := "failed alike " + groupOf("the bank said: status 503, request 1"); !strings.Contains(log.String(), want) {
				t.Errorf("%q is not in the log: %s", want, log.String())
			}
			for _, page := range []string{seen, b.get("/messages").text, b.get("/messages?alike=" + groupOf("no such customer 1")).text} {
				for _, e := range append(b.parse(page).all("a"), b.parse(page).all("form")...) {
					if to := e.attr["href"] + e.attr["action"]; strings.Contains(to, "bank") || strings.Contains(to, "customer") {
						t.Errorf("a reason is in the URL %s", to)
					}
				}
			}
		})
	}
}

// A limit, and what has changed since the count, are about the group. A reason that
// changed after the count takes its message out of the group, and one that came into it
// was not asked about.
func TestAJobChangesOnlyTheGroupThatWasCounted(t *testing.T) {
	for name, s := range sealing(t) {
		t.Run(name, func(t *testing.T) {
			failedShop(t, s)
			c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
			of := groupOf("no such customer 1")
			b := as(t, c, decideToken).get("/messages?consumer=billing&alike="+of).follow("Discard all that match").fill("/change", "reason", "tests", "limit", "1")
			b.shows("Will be discarded 1 message, of 1 that matches", "m0").hides("m1", "m2").fill("/jobs")
			if j := ended(t, c, 1); j.tally.Changed != 1 || countIn(t, s, store.Discarded) != 1 || onShelfNow(t, s)["m0"].State != store.Discarded {
				t.Errorf("%+v", j.tally)
			}
			b.get("/messages?alike="+of).follow("Replay all that match").fill("/change", "reason", "they exist now").shows("Yes, replay 3")
			all := onShelfNow(t, s)
			for id, reason := range map[string]string{"m1": "the bank said: status 503, request 1", "m2": "no such customer 2"} {
				m := all[id]
				m.Reason = reason
				if err := s.Change(t.Context(), store.SealReason(&s.Options().Sealing, m)); err != nil {
					t.Fatal(err)
				}
			}
			b.fill("/jobs")
			if j := ended(t, c, 2); j.tally != (tally{Matched: 3, Changed: 2, Moved: 1}) {
				t.Errorf("%+v", j.tally)
			}
			for id, m := range onShelfNow(t, s) {
				if want := id == "m5" || id == "m6"; (m.State == store.Waiting) != want {
					t.Errorf("%s is %v", id, m.State)
				}
			}
		})
	}
}

// Only the samples and the open ones of the group are shown, however many others come
// first.
func TestAQuestionIsAboutTheGroupOnly(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 1200)...)
	shelve(t, s, store.Shelved{Consumer: "billing", Reason: store.UnknownOutcome + "timed out", Message: broker.Message{ID: "u"}},
		store.Shelved{Consumer: "billing", Reason: "timed out", Message: broker.Message{ID: "last"}})
	of := "&consumer=billing&alike=" + groupOf("timed out")
	still := as(t, timed(t, s, 0), decideToken).get("/messages?consumer=billing").hides("Failed alike") // the first 1,000 are alike
	still.get("/messages?"+of).shows("last", "1,000+ no such customer", "Only the first 1,000 that match were counted").hides("m1", "u may")
	still.follow("Discard all that match").shows("1 1").hides("may have happened", "0+")

	c := unhurried(t, s)
	b := as(t, c, decideToken).get("/change?of=messages&do=discard"+of).fill("/change", "reason", "r").shows("Will be discarded 1 message, of 1", "last").hides("m0", "May have happened").fill("/jobs")
	ended(t, c, 1)
	if n := countIn(t, s, store.Discarded); n != 0 { // among the first 1,000
		t.Errorf("%d are discarded", n)
	}
	b.get("/messages?consumer=billing&state=discarded").shows("last").hides("m0")
	b.get("/messages?consumer=billing&alike=" + groupOf(store.UnknownOutcome+"timed out")).follow("Discard all that match").shows("1 of them may have happened")
	b.fill("/change", "reason", "r").shows("May have happened 1 of them", "u may have happened")
}

// unhurried returns a console whose pages may take as long as the machine needs.
func unhurried(t *testing.T, s *memstore.Store) *Console {
	t.Helper()
	now := time.Now()
	return openBy(t, func() time.Time { return now }, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
}

// timed returns a console for pages only, which begins no job. A step of time passes
// with each look at its clock.
func timed(t *testing.T, s *memstore.Store, step time.Duration) *Console {
	t.Helper()
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	c.Close()
	var at atomic.Int64
	c.now = func() time.Time { return time.Unix(0, at.Add(int64(step))) }
	return c
}

// Where the messages of a group are rare, no page takes long, and each says what it has
// not read. The question is about all of them.
func TestARareGroupIsFoundInBoundedTime(t *testing.T) {
	s := memstore.New(nil)
	shelve(t, s, parked("billing", 1200)...)
	shelve(t, s, store.Shelved{Consumer: "billing", Reason: "timed out", Message: broker.Message{ID: "last"}})
	late := as(t, timed(t, s, glanceTime), decideToken) // each look at the clock is too late
	late.get("/messages?alike="+groupOf("timed out")).shows("No message that matches was found so far").hides("last", "any more")
	late.get("/change?of=messages&do=replay&alike="+groupOf("timed out")).shows("Match Would be replayed Outcome unknown 0+ 0+ 0", "There may be more: the next page counts all")

	c := unhurried(t, s)
	b := as(t, c, decideToken).get("/change?of=messages&do=replay&alike=" + groupOf("timed out"))
	b.fill("/change", "reason", "r").shows("Will be replayed 1 message, of 1", "last", "failed alike timed out").hides("m0").fill("/jobs")
	ended(t, c, 1)
	for id, m := range onShelfNow(t, s) {
		if m.State != store.Parked {
			t.Errorf("%s is %v", id, m.State)
		}
	}
	if ms, err := s.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Waiting}}); len(ms) != 1 || ms[0].Message.ID != "last" || err != nil {
		t.Errorf("waiting are %v: %v", ms, err)
	}
	late.get("/messages?alike=" + groupOf("timed out")).follow("Search on").shows("There are no more messages").hides("last")
}

func TestGroupsAreFewAndTheLargestFirst(t *testing.T) {
	s := memstore.New(nil)
	for i := range 13 {
		for j := range i + 1 {
			shelve(t, s, store.Shelved{Consumer: "billing", Reason: "cause " + string(rune('a'+i)), Message: broker.Message{ID: fmt.Sprint(i, "-", j)}})
		}
	}
	shelve(t, s, store.Shelved{Consumer: "billing", Message: broker.Message{ID: "silent"}})
	b := as(t, open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}}), decideToken).get("/messages")
	b.shows("13 cause m", "12 cause l", "4 cause d", "4 other groups").hides("cause c just", "no reason")
	b.get("/messages?alike="+groupOf("")).shows("silent", "Failed alike: no reason", "1 no reason", "3 other groups").hides("0-0")
	for _, path := range []string{"/messages", "/outbox", "/change?of=messages&do=replay", "/change?of=outbox&do=retry"} {
		for _, id := range []string{"x", "E3B0C44298FC1C14", "e3b0c44298fc1c14e3", url.QueryEscape("<b>")} {
			at := "?"
			if strings.Contains(path, at) {
				at = "&"
			}
			b.get(path + at + "alike=" + id).is(400)
		}
	}
	b.get("/messages?state=handled").hides("Failed alike")
}

// A message that was decided about again and again has a history of up to 64 KiB. A list,
// which compares a thousand messages, does not open histories.
func TestAListDoesNotOpenHistories(t *testing.T) {
	s := sealing(t)["sealed"]
	var ms []store.Shelved
	for i := range 200 {
		m := store.Shelved{Consumer: "billing", Reason: fmt.Sprint("no such customer ", i%2 == 0), Message: broker.Message{ID: fmt.Sprint("m", i)}}
		m = store.SealShelved(&s.Options().Sealing, m)
		line := "replayed by ana (it was parked: " + m.Reason + ")\n"
		m.History = strings.Repeat(line, 60_000/len(line))
		ms = append(ms, m)
	}
	shelve(t, s, ms...)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	c.Close() // which samples the store no more
	b := as(t, c, lookToken)
	b.get("/messages").shows("no such customer true", "no such customer false") // also makes what is made once
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.get("/messages").shows("no such customer true")
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 16 {
		t.Errorf("a page took %d MiB", n)
	}
}

// The pages of a group have each of its messages once.
func TestAGroupIsListedPageByPage(t *testing.T) {
	s := memstore.New(nil)
	for i := range 3 * messagesOnPage {
		shelve(t, s, store.Shelved{Consumer: "billing", Reason: "cause " + []string{"a", "b"}[i%2], Message: broker.Message{ID: fmt.Sprintf("m-%03d", i)}})
	}
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), lookToken)
	b.get("/messages?alike="+groupOf("cause b")).shows("m-001", "m-099", "75 cause b").hides("m-000", "m-101").follow("Next page")
	b.shows("m-101", "m-149", "Failed alike: cause b").hides("m-099", "m-100", "Next page", "75 cause b")
}

func TestStuckMessagesThatFailedAlikeAreRetried(t *testing.T) {
	s := memstore.New(nil)
	for i := range 6 {
		put(t, s, "", broker.Message{ID: fmt.Sprint("m", i)})
	}
	ms := outgoing(t, s, store.Pending)
	for i := range ms {
		ms[i].Reason = fmt.Sprintf([]string{"no such topic t%d", "too large: %d MB"}[i%2], i)
	}
	if n, err := s.MoveOutgoing(t.Context(), [16]byte{}, ms, store.Stuck); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	c := open(t, Options{Write: true, Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken).get("/outbox").shows("3 no such topic …", "3 too large: … MB").follow("no such topic").shows("Failed alike: no such topic …", "m0", "m2", "m4").hides("m1", "m3")
	b.get("/outbox?topic=mail&alike=" + groupOf("no such topic 1")).shows("m0").hides("m1").follow("Retry all that match").shows("failed alike no such topic …")
	b.fill("/change", "reason", "made it").shows("Will be retried 3 messages").hides("m1")
	moved := outgoing(t, s, store.Stuck)[2:3]
	moved[0].Reason = "too large: 7 MB" // since it was counted
	if n, err := s.MoveOutgoing(t.Context(), [16]byte{}, moved, store.Stuck); n != 1 || moved[0].Message.ID != "m2" || err != nil {
		t.Fatal(n, moved, err)
	}
	b.fill("/jobs")
	if j := ended(t, c, 1); j.tally != (tally{Matched: 3, Changed: 2, Moved: 1}) {
		t.Errorf("%+v", j.tally)
	}
	for _, m := range append(outgoing(t, s, store.Held), outgoing(t, s, store.Stuck)...) {
		if want := m.Message.ID == "m0" || m.Message.ID == "m4"; (m.State == store.Held) != want {
			t.Errorf("%s is %v", m.Message.ID, m.State)
		}
	}
	b.get("/outbox?alike=" + groupOf("no such topic 1")).shows("No message that failed alike, and matches, is stuck now").follow("too large: … MB").shows("m1")
	b.follow("m1").follow("Failed alike").shows("m1", "m2", "m3", "m5")
}
