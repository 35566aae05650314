package storetest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/storetest"
)

// bugs are seeded bugs, each with the cases that must catch it. Most of them
// have occurred in released software.
var bugs = map[string]string{
	"weak digest":            "key/no-weak-digest",
	"parts run together":     "key/parts-are-kept-apart",
	"parts with a separator": "key/parts-are-kept-apart",
	"case ignored":           "key/every-byte-counts",
	"padding ignored":        "key/every-byte-counts",
	"scope ignored":          "key/every-byte-counts",
	"long keys cut":          "key/full-length",
	"keys kept for ever":     "retention/key retention/count settle/after-reclaim",

	"never seen, and there":                  "key/never-seen",
	"a claim is an upsert":                   "claim/taken race/claim do/once dotx/lost-reply",
	"former owner taken for the present one": "claim/own-after-takeover",
	"attempt named, and nothing taken":       "takeover/free",
	"takes over what is done":                "claim/done-stands",
	"done before the work":                   "claim/free",
	"late claim taken for a new one":         "claim/late",
	"own claim met as a rival":               "claim/own-repeated do/lost-messages caller-tx/own-claim",
	"own claim renewed":                      "claim/own-repeated claim/own-lapsed",
	"own claim counted":                      "claim/own-repeated",
	"refused by a row that has expired":      "retention/key race/anew",
	"looks, then acts":                       "race/claim race/takeover race/reclaim",
	"expired is free":                        "claim/expired-stands retention/outcome",
	"takes over the living":                  "claim/running-stands",
	"takes over the parked":                  "claim/parked-stands",
	"takes over unasked":                     "lease/lapsed-is-not-free takeover/wrong-attempt transact/lost-claim",
	"takes over by any attempt":              "takeover/wrong-attempt",
	"takeover keeps the attempt":             "takeover/lapsed takeover/unknown race/takeover do/resent dotx/unknown transact/takeover",
	"takeover resets the age":                "takeover/lapsed",
	"release resets the age":                 "claim/released",
	"release forgets the count":              "claim/attempts-rise retention/count race/attempts do/not-done",
	"forgotten counts on":                    "settle/after-reclaim retention/key",
	"reason outlives a claim":                "claim/released takeover/unknown",
	"fingerprint outlives a claim":           "claim/released",
	"cause not written":                      "claim/free claim/cause list/cause",
	"cause of a duplicate written":           "claim/cause claim/taken",
	"cause outlives a claim":                 "claim/cause",
	"cause dropped at completion":            "claim/cause",
	"keeps the caller's slices":              "claim/slices",
	"hands out its slices":                   "claim/slices",
	"reads a replica":                        "claim/free",
	"a cache in the process":                 "get/fresh",
	"context ignored":                        "context/ended transact/context-ended",
	"options made anew":                      "options/same",

	"lapsed is free":                     "lease/lapses settle/late",
	"remaining 0 read as none":           "lease/lapses do/resent",
	"client clock":                       "lease/own-clock",
	"lease as long as the retention":     "lease/apart-from-retention",
	"extend adds":                        "extend/moves-the-end",
	"extend never shortens":              "extend/moves-the-end",
	"extended record without a deadline": "extend/moves-the-end do/heartbeat",
	"extend revives":                     "extend/lapsed",
	"extend runs the unknown":            "extend/not-running",
	"extend without the token":           "extend/stale settle/after-reclaim",
	"extend without the attempt":         "extend/stale",

	"completion without any check":        "settle/after-takeover race/late do/fenced",
	"completion without an owner check":   "settle/stale settle/after-reclaim transact/stale-settlement caller-tx/stale",
	"completion without an attempt check": "settle/stale",
	"unheld keys settled":                 "settle/never-seen",
	"late completion refused":             "settle/late do/asked",
	"parked is final":                     "settle/late do/parked",
	"parked goes back":                    "settle/parked-stays",
	"done is overwritten":                 "settle/done-is-final race/settle",
	"any outcome taken for a repeat":      "settle/done-is-final race/settle",
	"released and completed":              "settle/released-is-ended",
	"repeat refused":                      "settle/repeated do/lost-messages",
	"late repeat refused":                 "settle/repeated-late",
	"release keeps its owner":             "settle/released",
	"owner dropped at completion":         "settle/done",
	"unknown keeps its lease":             "settle/unknown",
	"reason dropped":                      "settle/parked outcome/reason",
	"outcome of what is not done":         "settle/released settle/unknown",
	"ends as anything":                    "settle/no-such-end",

	"fingerprint dropped at completion":    "outcome/fingerprint settle/done do/mismatch dotx/mismatch do/sealed dotx/sealed",
	"fingerprint dropped with the outcome": "outcome/fingerprint do/mismatch",
	"empty outcome lost":                   "outcome/exact transact/exact",
	"falsy outcome lost":                   "outcome/exact do/replayed",
	"text cut at a zero byte":              "outcome/exact",
	"text made valid":                      "outcome/exact",
	"rejection lost":                       "outcome/exact do/rejected dotx/rejected",
	"omission lost":                        "outcome/exact",
	"type lost":                            "outcome/exact",
	"sum signed":                           "outcome/exact",
	"outcome cut at 64 KiB":                "outcome/large",

	"outcomes kept until Forget":          "retention/outcome",
	"what is left of the key":             "retention/left",
	"claim keeps the retention before it": "retention/ends-with-a-claim forget/never-unsettled",
	"Forget unbounded":                    "forget/bounded",
	"Forget leaves the row":               "forget/bounded",
	"Forget counts outcomes only":         "forget/bounded",
	"Forget hides what it did":            "forget/bounded",
	"Forget drops early":                  "forget/two-stages",
	"Forget deletes the unknown":          "forget/never-unsettled",
	"Forget deletes the parked":           "forget/never-unsettled",
	"Forget deletes the released":         "retention/count",
	"Forget deletes the expired":          "retention/outcome forget/two-stages",
	"Forget acts on what it saw":          "forget/beside-claims",
	"interrupted Forget leaves a part":    "forget/interrupted",

	"not a Lister":                "list/offered",
	"list by stored status":       "list/selects",
	"forgotten keys listed":       "list/selects",
	"list by prefix":              "list/selects",
	"list in any scope":           "list/selects",
	"list of any cause":           "list/cause",
	"list by UUID is everything":  "list/cause",
	"list what has just changed":  "list/unchanged",
	"an empty part is in all IDs": "list/ids",
	"IDs of forgotten keys":       "list/ids",
	"IDs without a limit":         "list/ids",
	"IDs by prefix":               "list/ids",
	"IDs in any case":             "list/ids",
	"IDs by a pattern":            "list/ids",
	"a short page is the last":    "list/selects",
	"pages have no end":           "list/pages",
	"list with bodies":            "list/records",
	"list unbounded":              "list/pages",
	"pages overlap":               "list/pages",
	"pages skip what sorts equal": "list/pages",

	"archive as Get shows it":          "archive/due",
	"archive of what is kept":          "archive/due",
	"empty outcome taken for dropped":  "archive/due archive/two-stages",
	"outcome archived for ever":        "archive/two-stages",
	"outcomes dropped without a trace": "archive/after-forget",
	"archive forgets by key alone":     "archive/same",
	"archive forgets early":            "archive/same",
	"archive unbounded":                "archive/bounded",
	"a full page of the archive ends":  "archive/bounded",
	"archive forgets what it saw":      "archive/race",
	"reopen keeps the outcome":         "reopen/frees",
	"reopen forgets the count":         "reopen/frees reopen/next reopen/do",
	"reopen without a reason":          "reopen/frees",
	"reopen drops the owner":           "reopen/late reopen/repeated",
	"reopen without the owner":         "reopen/stale",
	"reopen without the attempt":       "reopen/stale",
	"reopen of what is not done":       "reopen/not-done",
	"reopen repeated is refused":       "reopen/repeated",
	"reopen leaves the retention":      "reopen/kept",
	"reopen looks, then acts":          "reopen/race",

	"commits in spite of an error":               "transact/fails dotx/failed dotx/lost-commit dotx/conflict",
	"commits on a panic":                         "transact/panics dotx/failed",
	"error of the body flattened":                "transact/fails",
	"rows in a commit of their own":              "transact/stale-settlement transact/together",
	"a rollback leaves the key taken":            "transact/fails flight/rolls-back",
	"a rollback deletes the row":                 "transact/rolls-back-to",
	"body called by the loser":                   "transact/lost-claim",
	"speculative run commits unclaimed":          "speculative/commit speculative/silent speculative/race",
	"speculative error believed":                 "speculative/lost",
	"speculative rows of the loser kept":         "speculative/lost",
	"speculative rows of a failure kept":         "speculative/fails",
	"speculative run not run again":              "speculative/known",
	"speculative claim of a silent body skipped": "speculative/silent",
	"speculative claim not waited for":           "speculative/in-flight",
	"speculative outcome as foreseen":            "speculative/commit",
	"own claim not run":                          "transact/own-claim",
	"settles the first only":                     "transact/several caller-tx/several",
	"records in another order":                   "transact/several",
	"one cause for all claims":                   "transact/causes",
	"returns the records as settled":             "transact/commit",
	"stale settlement ignored":                   "transact/stale-settlement caller-tx/stale",
	"repeat counts as its own row":               "transact/stale-settlement",
	"ends with its context":                      "transact/context-ends",
	"blind to transactions in flight":            "flight/commits transact/race dotx/late-commit dotx/once",
	"a transaction locks the table":              "flight/another-key",
	"claims outside the transaction":             "caller-tx/rollback transact/fails",
	"settles outside the transaction":            "caller-tx/settle-only caller-tx/commit caller-tx/released intx/rollback intx/commit intx/failed",
	"a lost claim aborts the transaction":        "caller-tx/lost-claim",
	"repeat refused in a transaction":            "caller-tx/repeated",
}

// buggy returns the harness of a store with a bug. Each process has its own
// clock.
func buggy(bug string) storetest.TxHarness[*buggyTx] {
	d := newDatabase(bug)
	skew := time.Duration(0)
	open := func() *buggyStore {
		skew += time.Hour
		return &buggyStore{database: d, options: once.Options{}.Ready(), skew: skew, cache: make(map[once.Key]row)}
	}
	admin := open()
	return storetest.TxHarness[*buggyTx]{
		Open: func(testing.TB) once.TxStore[*buggyTx] {
			if bug == "not a Lister" {
				return struct{ once.TxStore[*buggyTx] }{open()}
			}
			return open()
		},
		Begin:    func(context.Context) (*buggyTx, error) { return admin.begin(), nil },
		Commit:   func(_ context.Context, tx *buggyTx) error { return admin.end(tx, true) },
		Rollback: func(_ context.Context, tx *buggyTx) error { return admin.end(tx, false) },
		Effect: func(_ context.Context, tx *buggyTx, name string) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			if tx.aborted {
				return errAborted
			}
			tx.effects[name]++
			return nil
		},
		Count: func(_ context.Context, name string) (int, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.effects[name], nil
		},
		SeesInFlight: true,
	}
}

// TestNoBug checks that a store without a bug passes, so that the others are
// caught by their bug.
func TestNoBug(t *testing.T) {
	pass(t, func() []storetest.Case { return storetest.TxCases(t, buggy("")) })
}

// TestWithoutTransactions checks that the suite works for a store that is only
// a once.Store.
func TestWithoutTransactions(t *testing.T) {
	pass(t, func() []storetest.Case {
		h := buggy("")
		return storetest.Cases(t, storetest.Harness{
			Open:   func(tb testing.TB) once.Store { return struct{ once.Store }{h.Open(tb)} },
			NoList: true,
		})
	})
}

// TestDeclaredListsAreChecked checks that a store which lists more than it
// declares is noticed.
func TestDeclaredListsAreChecked(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		h := buggy("")
		cases := storetest.Cases(t, storetest.Harness{Open: func(tb testing.TB) once.Store { return h.Open(tb) }, ListsOpen: true})
		i := slices.IndexFunc(cases, func(c storetest.Case) bool { return c.Name == "list/selects" })
		if err := cases[i].Check(t.Context()); err == nil {
			t.Error("list/selects does not see it")
		}
	})
}

func TestBugsAreCaught(t *testing.T) { catch(t, bugs, buggy) }

// catch checks that the cases of each bug fail.
func catch[Tx any](t *testing.T, bugs map[string]string, harness func(bug string) storetest.TxHarness[Tx]) {
	for bug, cases := range bugs {
		t.Run(bug, func(t *testing.T) {
			faketime.Test(t, func(t *testing.T) {
				h := harness(bug)
				h.Patience = 250 * time.Millisecond
				all := storetest.TxCases(t, h)
				for _, name := range strings.Fields(cases) {
					i := slices.IndexFunc(all, func(c storetest.Case) bool { return c.Name == name })
					if i < 0 {
						t.Fatalf("there is no case %s", name)
					}
					err := all[i].Check(t.Context())
					if err == nil {
						t.Errorf("%s does not see it", name)
						continue
					}
					t.Logf("%s: %v", name, err)
				}
			})
		})
	}
}

// pass checks that the cases pass, each in fake time and on a new store.
func pass(t *testing.T, cases func() []storetest.Case) {
	for i, c := range cases() {
		t.Run(c.Name, func(t *testing.T) {
			faketime.Test(t, func(t *testing.T) {
				if err := cases()[i].Check(t.Context()); err != nil {
					t.Errorf("%v\nthe rule: %s", err, c.Rule)
				}
			})
		})
	}
}

// TestEveryCaseCatchesABug checks that no case is redundant.
func TestEveryCaseCatchesABug(t *testing.T) {
	var named []string
	for _, cases := range bugs {
		named = append(named, strings.Fields(cases)...)
	}
	for _, c := range storetest.TxCases(t, buggy("")) {
		if !slices.Contains(named, c.Name) {
			t.Errorf("no seeded bug is caught by %s", c.Name)
		}
		if c.Rule == "" {
			t.Errorf("%s names no rule", c.Name)
		}
	}
}
