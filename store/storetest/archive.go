package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func archiveRules() []rule {
	return []rule{
		{"archive/due",
			"Forgettable returns the records that are past their time, as they still are, and no others. It changes no answer.",
			archiveDue},
		{"archive/two-stages",
			"ForgetRecords drops the outcome first and the key later. Forgettable returns an outcome until it is dropped.",
			archiveTwoStages},
		{"archive/after-forget",
			"Forgettable returns neither an outcome that Forget has dropped nor, instead of it, an empty one.",
			archiveAfterForget},
		{"archive/same",
			"ForgetRecords skips a record that has changed since it was returned, or is not past its time.",
			archiveSame},
		{"archive/bounded",
			"Forgettable returns at most limit records, and more reports whether there may be others. A limit below 1 is ErrInvalid.",
			archiveBounded},
		{"archive/race",
			"When several callers forget the same records while their keys are claimed, each record is forgotten once, and no claim is lost.",
			archiveRace},
	}
}

func (b *bench) archivable() store.Archivable { return capability[store.Archivable](b, b.store) }

// due returns the records of this case that Forgettable returns, by ID.
// Meanwhile records of other cases may be forgotten.
func (b *bench) due() map[string]once.Record {
	op := b.key("").Operation
	mine := make(map[string]once.Record)
	for {
		due, more, err := b.archivable().Forgettable(b, 100)
		b.must("Forgettable", err)
		var others []once.Record
		for _, rec := range due {
			if rec.Key.Operation == op {
				mine[rec.Key.ID] = rec
			} else {
				others = append(others, rec)
			}
		}
		if !more {
			return mine
		}
		n, err := b.archivable().ForgetRecords(b, others)
		b.must("ForgetRecords", err)
		if n == 0 && len(others) > 0 {
			b.failf("ForgetRecords changed none of %d records that Forgettable had returned", len(others))
		}
	}
}

// dueAfter waits until Forgettable returns certain records. Its result changes
// as time passes.
func (b *bench) dueAfter(what string, ok func(due map[string]once.Record) bool) (due map[string]once.Record) {
	b.until(what, func() bool {
		due = b.due()
		return ok(due)
	})
	return due
}

func has(ids ...string) func(map[string]once.Record) bool {
	return func(due map[string]once.Record) bool {
		for _, id := range ids {
			if due[id].Attempt == 0 {
				return false
			}
		}
		return true
	}
}

// keep makes a Done record whose retention is set by change.
func (b *bench) keep(id string, change func(*once.Settlement)) (set once.Settlement, before once.Record) {
	set = done(b.own(b.key(id), "owner of "+id, long))
	change(&set)
	b.settle(set)
	return set, b.get(set.Key)
}

var outcomes = map[string]once.Outcome{
	"body":     {Body: []byte("answer\x00\xff"), ContentType: "text/x-answer", Sum: 0xfffefdfc},
	"empty":    {Body: []byte{}, ContentType: "text/plain", Sum: 1},
	"nothing":  {},
	"rejected": {Body: []byte("no"), Rejected: true, Sum: 3},
	"omitted":  {Omitted: true, Sum: 4},
	"large":    {Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<14), Sum: 5},
}

func archiveDue(b *bench) {
	standing := b.fencesByState("")
	delete(standing, "expired") // the others are unsettled or kept for long
	var ids []string
	sets := make(map[string]once.Settlement)
	for id, out := range outcomes {
		sets[id], _ = b.keep(id, func(set *once.Settlement) { set.Outcome, set.KeepOutcome = out, short })
		ids = append(ids, id)
	}
	key, _ := b.keep("key", func(set *once.Settlement) { set.KeepOutcome, set.KeepKey = 2*short, short })
	together, _ := b.keep("together", func(set *once.Settlement) { set.KeepOutcome, set.KeepKey, set.Outcome.Body = short, short, nil })
	sets["key"], sets["together"] = key, together
	count := ending(b.own(b.key("count"), "me", long), once.Absent)
	count.KeepKey = short
	b.settle(count)
	due := b.dueAfter("all that is past its time is returned", has(append(ids, "key", "together", "count")...))
	for id := range due {
		if standing[id].Attempt > 0 {
			b.failf("Forgettable returns a key that is %s: %s", id, show(due[id]))
		}
	}
	for id, set := range sets {
		rec := due[id]
		if rec.Key != set.Key || rec.Status != once.Done || rec.Attempt != 1 || rec.Owner != set.Owner || rec.Reason != set.Reason ||
			string(rec.Fingerprint) != "print of owner of "+id || rec.Created.IsZero() || rec.Age <= 0 {
			b.failf("the record of %q that is past its time is %s", id, show(rec))
		}
		if !sameOutcome(rec.Outcome, set.Outcome) {
			b.failf("the outcome of %q was %+v, and is %s", id, set.Outcome, show(rec))
		}
	}
	if rec := due["count"]; rec.Status != once.Absent || rec.Owner != [16]byte{} || rec.Attempt != 1 || !sameOutcome(rec.Outcome, once.Outcome{}) {
		b.failf("the record of a released key is %s", show(rec))
	}
	for id := range outcomes {
		if rec := b.wantStatus(b.key(id), once.Expired); !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("Get shows the outcome of an expired key: %s", show(rec))
		}
	}
}

func archiveTwoStages(b *bench) {
	for id, out := range outcomes {
		rec := b.inTime(id, out)
		if n, err := b.archivable().ForgetRecords(b, []once.Record{rec}); n != 1 || err != nil {
			b.failf("ForgetRecords of a key changed %d, %v", n, err)
		}
		if is := b.get(rec.Key); !isZero(is) {
			b.failf("a key that was forgotten is %s", show(is))
		}
		if n, err := b.archivable().ForgetRecords(b, []once.Record{rec}); n != 0 || err != nil {
			b.failf("ForgetRecords, repeated, changed %d, %v", n, err)
		}
	}
	if left := b.due(); len(left) > 0 {
		b.failf("%d records past their time are left", len(left))
	}
}

// inTime drops an outcome before its key expires, and returns the record when
// the key has expired. On a slow machine it takes several attempts.
func (b *bench) inTime(id string, out once.Outcome) once.Record {
	for keep := 8 * short; ; keep *= 2 {
		id := fmt.Sprint(id, keep)
		set, _ := b.keep(id, func(set *once.Settlement) { set.Outcome, set.KeepOutcome, set.KeepKey = out, short, keep })
		rec := b.dueAfter("an outcome is past its time", has(id))[id]
		if rec.Status != once.Done || !sameOutcome(rec.Outcome, out) {
			b.failf("the outcome was %+v, and is %s", out, show(rec))
		}
		if n, err := b.archivable().ForgetRecords(b, []once.Record{rec}); n != 1 || err != nil {
			b.failf("ForgetRecords of an outcome changed %d, %v", n, err)
		}
		if is := b.get(set.Key); isZero(is) { // its row may still exist
			if rec, left := b.due()[id]; left {
				if n, err := b.archivable().ForgetRecords(b, []once.Record{rec}); n != 1 || err != nil {
					b.failf("ForgetRecords of a key changed %d, %v", n, err)
				}
			}
			continue
		} else if is.Status != once.Expired || !sameOutcome(is.Outcome, once.Outcome{}) {
			b.failf("after ForgetRecords the record is %s", show(is))
		}
		rec = b.dueAfter("a key is past its time", has(id))[id]
		if rec.Status != once.Expired || !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("an outcome that was forgotten is returned again: %s", show(rec))
		}
		return rec
	}
}

func archiveAfterForget(b *bench) {
	for id, out := range outcomes {
		for keep := 8 * short; ; keep *= 2 { // until Forget runs between the two times
			id := fmt.Sprint(id, keep)
			set, _ := b.keep(id, func(set *once.Settlement) { set.Outcome, set.KeepOutcome, set.KeepKey = out, short, keep })
			b.dueAfter("an outcome is past its time", has(id))
			b.forgetAll()
			if isZero(b.get(set.Key)) {
				continue
			}
			rec := b.dueAfter("a key is past its time", has(id))[id]
			if rec.Status != once.Expired || !sameOutcome(rec.Outcome, once.Outcome{}) {
				b.failf("an outcome that Forget has dropped is returned: %s", show(rec))
			}
			break
		}
	}
}

func archiveSame(b *bench) {
	b.keep("outcome", func(set *once.Settlement) { set.KeepOutcome = short })
	b.keep("anew", func(set *once.Settlement) { set.KeepOutcome, set.KeepKey = short, 2*short })
	b.keep("again", func(set *once.Settlement) { set.KeepOutcome, set.KeepKey = short, 2*short })
	b.vanish(b.key("anew"))
	b.vanish(b.key("again"))
	due := b.dueAfter("all are past their time", has("outcome", "anew", "again"))
	running := b.own(b.key("anew"), "another", long)
	set := done(b.own(b.key("again"), "another", long))
	set.KeepOutcome, set.KeepKey = short, 2*short
	b.settle(set)
	b.vanish(set.Key)
	_, young := b.keep("young", func(*once.Settlement) {})
	lie := young
	lie.Status = once.Done
	token, attempt := due["outcome"], due["outcome"]
	token.Owner = b.token("somebody else")
	attempt.Attempt++
	for what, rec := range map[string]once.Record{"a key that is running anew": due["anew"], "an outcome that nobody has seen": due["again"],
		"a record before its time": lie, "another owner's": token, "another attempt's": attempt} {
		if n, err := b.archivable().ForgetRecords(b, []once.Record{rec}); n != 0 || err != nil {
			b.failf("ForgetRecords of %s changed %d, %v", what, n, err)
		}
	}
	b.wantStatus(running.Key, once.Running)
	b.unchanged("ForgetRecords before its time", young, b.get(young.Key))
	left := b.due()
	if rec := left["again"]; rec.Owner != set.Owner || !sameOutcome(rec.Outcome, set.Outcome) {
		b.failf("an outcome that nobody has seen is %s", show(rec))
	}
	if rec := left["outcome"]; !sameOutcome(rec.Outcome, set.Outcome) {
		b.failf("an outcome of another owner, or attempt, was dropped: %s", show(rec))
	}
	b.settle(done(running))
}

func archiveBounded(b *bench) {
	for _, limit := range []int{0, -1} {
		_, _, err := b.archivable().Forgettable(b, limit)
		b.wantErr(fmt.Sprintf("Forgettable with a limit of %d", limit), err, once.ErrInvalid)
	}
	if n, err := b.archivable().ForgetRecords(b, nil); n != 0 || err != nil {
		b.failf("ForgetRecords of nothing changed %d, %v", n, err)
	}
	const n, limit = 7, 2
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
		b.keep(ids[i], func(set *once.Settlement) { set.KeepOutcome = short })
	}
	b.dueAfter("all are past their time", has(ids...))
	seen := make(map[string]bool)
	for more, rounds := true, 0; more; rounds++ {
		var due []once.Record
		var err error
		due, more, err = b.archivable().Forgettable(b, limit)
		b.must("Forgettable", err)
		if len(due) > limit || rounds > 1000 {
			b.failf("Forgettable with a limit of %d returns %d records, in round %d", limit, len(due), rounds)
		}
		for _, rec := range due {
			if rec.Key.Operation == b.key("").Operation {
				seen[rec.Key.ID] = true
			}
		}
		_, err = b.archivable().ForgetRecords(b, due)
		b.must("ForgetRecords", err)
	}
	if len(seen) != n {
		b.failf("Forgettable returned no more, after %d of %d", len(seen), n)
	}
}

func archiveRace(b *bench) {
	const forgetters, n = 3, 8
	var ids []string
	for i := range n {
		id := fmt.Sprint(i)
		ids = append(ids, id)
		b.keep(id, func(set *once.Settlement) { set.KeepOutcome, set.KeepKey = short, 2*short })
	}
	for _, id := range ids {
		b.vanish(b.key(id))
	}
	var recs []once.Record
	for _, rec := range b.dueAfter("all are past their time", has(ids...)) {
		recs = append(recs, rec)
	}
	changed := make([]int, forgetters)
	requests := make([]once.ClaimRequest, n/2)
	for i := range requests {
		requests[i] = b.request(b.key(ids[i]), "anew", long)
		requests[i].Wait = slowest
	}
	b.together(forgetters+len(requests), func(i int) {
		if i < forgetters {
			b.persist("ForgetRecords", func() (err error) {
				var more int
				more, err = capability[store.Archivable](b, b.spread(i)).ForgetRecords(b, recs)
				changed[i] += more
				return err
			})
			return
		}
		b.persist("Claim", func() error {
			_, err := b.spread(i).Claim(b, requests[i-forgetters])
			return err
		})
	})
	total := 0
	for _, some := range changed {
		total += some
	}
	if total < n-len(requests) && len(b.due()) == 0 || total > n {
		b.failf("of %[2]d records, the calls report %[1]d as forgotten", total, n)
	}
	for _, r := range requests {
		b.wantRunning(b.get(r.Key), r, 1)
	}
}

// unsupportedRule replaces the archive rules for a store that sets
// ForgetsTogether.
func unsupportedRule() rule {
	return rule{"archive/unsupported", "A store that cannot return what it would forget returns errors.ErrUnsupported.", func(b *bench) {
		_, _, err := b.archivable().Forgettable(b, 1)
		b.wantErr("Forgettable", err, errors.ErrUnsupported)
		_, err = b.archivable().ForgetRecords(b, []once.Record{{Key: b.key("1"), Attempt: 1}})
		b.wantErr("ForgetRecords", err, errors.ErrUnsupported)
	}}
}
