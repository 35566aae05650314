//go:build go1.25

package brokertest_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/membroker"
)

// world is a broker whose adapter has one bug, or none. Without a bug it keeps
// the whole contract.
type world struct {
	bug      string
	place    brokertest.Place
	broker   *membroker.Broker
	source   *buggySource
	restarts atomic.Int64
	opened   atomic.Int64 // sessions that are open
}

func (w *world) has(bug string) bool { return w.bug == bug }

// fresh returns a place of a world: a log with four partitions, or a queue.
func (w *world) fresh(log bool) brokertest.Place {
	b := membroker.New(nil)
	w.broker = b
	w.restarts.Store(0)
	w.opened.Store(0)
	w.source = &buggySource{world: w, inner: b.Queue("orders")}
	w.place = brokertest.Place{
		Publisher:   &buggyPublisher{world: w, inner: b.Publisher()},
		Source:      w.source,
		Topic:       "orders",
		DeadLetters: func(testing.TB) []*broker.Message { return b.Messages("orders.dead") },
		Unroutable:  "nowhere",
		Log:         log,
	}
	if log {
		w.source.inner = b.Log("orders", "billing", 4)
		w.place.Source = &buggyLog{w.source}
		w.place.DeadLetters = nil
	}
	return w.place
}

// restart takes the broker down for a moment.
func (w *world) restart(testing.TB) {
	if w.has("unsettled lost in a restart") {
		w.source.settleAll()
	}
	w.restarts.Add(1)
	w.broker.Down(true)
	time.Sleep(50 * time.Millisecond)
	w.broker.Down(false)
}

// cases returns the cases of a harness whose adapter has a bug.
func cases(bug string, log bool) []brokertest.Case {
	w := &world{bug: bug}
	return brokertest.Cases(brokertest.Harness{
		Fresh:    func(testing.TB) brokertest.Place { return w.fresh(log) },
		Restart:  w.restart,
		Confirms: true,
	})
}

// failing returns the names of the cases that catch a bug. They run in fake
// time.
func failing(t *testing.T, bug string, log bool) (names []string) {
	for _, c := range cases(bug, log) {
		synctest.Test(t, func(t *testing.T) {
			if _, err := c.Check(t); err != nil {
				names = append(names, c.Name)
				t.Logf("%s: %v", c.Name, err)
			}
			time.Sleep(100 * time.Hour) // of what a bug has left behind, all ends
		})
	}
	return names
}

// bugs are seeded bugs with the cases that catch each, in a queue or a log. If
// the list ends in "...", other cases may catch it too, because hardly anything
// works with such a bug.
var bugs = map[string]string{
	"calls meet":                            "publish/concurrent",
	"context changes nothing":               "publish/ended-context",
	"ended context is the message's fault":  "publish/ended-context",
	"ended context breaks the publisher":    "publish/ended-context",
	"restart breaks the publisher":          "restart/publish restart/order restart/receive",
	"calls overtake each other":             "order/calls",
	"confirmed before it is stored":         "publish/caller-owns restart/publish restart/order",
	"hidden retries":                        "restart/order",
	"a batch ends at 500":                   "publish/batch ...",
	"a batch backwards":                     "order/batch",
	"one error for all":                     "publish/invalid publish/ended-context publish/unroutable",
	"one error fails all":                   "publish/invalid",
	"errors of Check flattened":             "publish/invalid",
	"unroutable is confirmed":               "publish/unroutable",
	"unroutable fails all":                  "publish/unroutable",
	"equal IDs wait for one confirmation":   "publish/equal-ids",
	"deduplication claimed":                 "publish/deduplicates",
	"attempt reset in the caller's message": "publish/caller-owns",

	"headers dropped":                  "message/header message/library message/fields publish/caller-owns reject/dead-letters",
	"empty headers dropped":            "message/header",
	"the library's headers dropped":    "message/header",
	"headers of its own":               "message/bare ...",
	"cause taken for the ordering key": "message/library reject/dead-letters",
	"ordering key where the cause was": "message/library reject/dead-letters",
	"ordering key dropped":             "message/fields message/long ...",
	"time in seconds":                  "message/time",
	"time of another zone":             "message/time",
	"body cut at 64 KiB":               "message/body",
	"body made text":                   "message/body",
	"empty body replaced":              "message/body message/bare",
	"long IDs cut":                     "message/long",
	"IDs escaped":                      "message/long",

	"a name for each call":                 "source/name",
	"a location for each call":             "source/location restart/publish",
	"the location is the connection":       "restart/publish",
	"a fact without a name":                "source/location",
	"horizon below zero":                   "source/horizon",
	"no lag":                               "source/lag",
	"lag of what is settled":               "source/lag",
	"no lag without positions":             "source/lag-from",
	"the message of a position counts":     "source/lag-from",
	"an unknown lag is none":               "source/lag-from",
	"no message is an answer":              "receive/waits ...",
	"waits for a full batch":               "receive/at-once",
	"more than asked for":                  "receive/most ...",
	"what is too much is lost":             "receive/most ...",
	"context ignored":                      "receive/context ...",
	"context's end is an error of its own": "receive/context",
	"context's end breaks the session":     "receive/context receive/given-up ...",
	"a request is left behind":             "receive/given-up ...",
	"window ignored":                       "window/kept",
	"window one too large":                 "window/kept",
	"room lost by Reject":                  "window/frees",
	"room lost by Return":                  "window/frees",

	"Ack does nothing":                         "ack/for-good ...",
	"acknowledged when received":               "close/comes-again ...",
	"Ack of the first only":                    "ack/for-good ack/any-order ...",
	"Ack of the oldest only":                   "ack/any-order ...",
	"Ack of all before":                        "ack/only-named ack/any-order ack/concurrent settle/twice",
	"Ack of all after":                         "ack/prefix ack/only-named ...",
	"Acks meet":                                "ack/concurrent",
	"never redelivered":                        "return/again return/elsewhere close/comes-again share/left restart/unsettled ...",
	"redelivered by this session only":         "return/elsewhere close/comes-again share/left restart/unsettled ...",
	"attempts fall":                            "return/again",
	"attempts from zero":                       "message/fields ...",
	"no origin":                                "message/fields",
	"Return acknowledges":                      "return/again return/elsewhere return/delay window/frees settle/twice",
	"returned with the session":                "return/again return/delay window/frees close/settle-after settle/twice",
	"delay ignored":                            "return/delay",
	"delay too short":                          "return/delay",
	"held back for ever":                       "return/delay",
	"held back alone":                          "return/others-pass",
	"no longest delay":                         "return/delay return/others-pass",
	"Reject returns":                           "reject/for-good reject/dead-letters settle/twice",
	"Reject drops":                             "reject/dead-letters",
	"Reject takes the others along":            "reject/for-good settle/twice",
	"reason dropped":                           "reject/dead-letters",
	"dead letters denied":                      "reject/dead-letters",
	"settled twice without a word":             "settle/twice",
	"settled twice with the others":            "settle/twice",
	"one that was settled is all that is seen": "settle/twice",

	"lost on close":                  "close/comes-again ...",
	"unsettled after Close":          "close/comes-again ...",
	"prefetched messages lost":       "close/not-received ...",
	"closed twice":                   "close/twice",
	"settled after Close":            "close/settle-after",
	"lost when shared":               "share/none-lost",
	"delivered to all sessions":      "share/out-once share/left ...",
	"last first":                     "order/batch order/calls order/slowly ...",
	"order kept within a batch only": "order/slowly ...",

	"no position":               "message/fields log/positions ...",
	"no log":                    "log/positions ...",
	"a log for each message":    "log/positions ...",
	"a log for each session":    "log/same-position ...",
	"offsets fall":              "log/positions ...",
	"offsets of the session":    "log/same-position ...",
	"Seek does nothing":         "log/seek log/seek-start log/seek-forward",
	"Seek to the position":      "log/seek log/seek-forward",
	"Seek keeps what is out":    "log/seek log/seek-forward",
	"Seek not before the first": "log/seek-start",
	"Seek goes back only":       "log/seek-forward",

	"dies in silence":             "restart/receive",
	"settled in a broken session": "restart/settle",
	"unsettled lost in a restart": "restart/unsettled restart/settle",
}

// TestAnAdapterWithoutBugsPasses shows that the cases catch the bugs, and not
// the adapter that has them.
func TestAnAdapterWithoutBugsPasses(t *testing.T) {
	if names := failingAnywhere(t, ""); len(names) > 0 {
		t.Errorf("there is no bug, and these fail: %s", strings.Join(names, " "))
	}
}

func TestBugsAreCaught(t *testing.T) {
	for bug, list := range bugs {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			named, others := strings.CutSuffix(list, " ...")
			want, got := strings.Fields(named), failingAnywhere(t, bug)
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Errorf("%s does not see it", name)
				}
			}
			for _, name := range got {
				if !others && !slices.Contains(want, name) {
					t.Errorf("%s sees it too", name)
				}
			}
		})
	}
}

// failingAnywhere returns the names of the cases that catch a bug in a queue or
// in a log.
func failingAnywhere(t *testing.T, bug string) []string {
	names := append(failing(t, bug, false), failing(t, bug, true)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// TestEveryCaseCatchesABug shows that every case can fail.
func TestEveryCaseCatchesABug(t *testing.T) {
	var named []string
	for _, list := range bugs {
		named = append(named, strings.Fields(list)...)
	}
	for _, c := range cases("", false) {
		if !slices.Contains(named, c.Name) {
			t.Errorf("no seeded bug is caught by %s", c.Name)
		}
		if c.Rule == "" {
			t.Errorf("%s names no rule", c.Name)
		}
	}
}

// TestACaseThatCannotCheckIsSkipped shows that a case which cannot check
// anything says why, and that no other case is skipped.
func TestACaseThatCannotCheckIsSkipped(t *testing.T) {
	harness := brokertest.Harness{Fresh: func(testing.TB) brokertest.Place {
		b := membroker.New(nil)
		return brokertest.Place{Publisher: b.Publisher(), Source: b.Queue("q"), Topic: "q"}
	}}
	var skipped []string
	for _, c := range brokertest.Cases(harness) {
		synctest.Test(t, func(t *testing.T) {
			why, err := c.Check(t)
			if why != "" {
				skipped = append(skipped, c.Name)
			}
			if err != nil && c.Name != "reject/dead-letters" { // the place denies that there are any
				t.Errorf("%s: %v", c.Name, err)
			}
		})
	}
	want := "publish/deduplicates publish/unroutable source/lag-from " +
		"log/positions log/same-position log/seek log/seek-start log/seek-forward " +
		"restart/publish restart/order restart/unsettled restart/receive restart/settle"
	if got := strings.Join(skipped, " "); got != want {
		t.Errorf("skipped are %s, want %s", got, want)
	}
}
