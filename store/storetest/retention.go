package storetest

import (
	"time"

	"github.com/effectively-once/once"
)

func retentionRules() []rule {
	return []rule{
		{"retention/outcome",
			"After KeepOutcome the key is Expired: known, but without its outcome, whether Forget ran or not.",
			retentionOutcome},
		{"retention/left",
			"OutcomeLeft of a Done record is the time until the outcome expires or the key is forgotten, or zero if the store does not know it.",
			retentionLeft},
		{"retention/key",
			"After KeepKey the key is new: Get returns the zero Record, and a claim starts at Attempt 1, whether Forget ran or not.",
			retentionKey},
		{"retention/count",
			"The attempts of a released key are counted for KeepKey, and then start again.",
			retentionCount},
		{"retention/ends-with-a-claim",
			"A claim ends the retention of what was before: a Running record is never forgotten.",
			retentionEndsWithAClaim},
	}
}

func retentionOutcome(b *bench) {
	k := b.key("1")
	set := done(b.own(k, "me", long))
	set.KeepOutcome = short
	b.settle(set)
	check := func(when string) {
		rec := b.wantStatus(k, once.Expired)
		if rec.Key != k || rec.Attempt != 1 || rec.Owner != set.Owner || !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("%s the expired record is %s", when, show(rec))
		}
	}
	b.become(k, once.Expired)
	check("before Forget")
	b.forgetAll()
	check("after Forget")
	b.stands(k)
}

func retentionLeft(b *bench) {
	for id, keep := range map[string][2]time.Duration{"outcome": {long, 2 * long}, "key": {2 * long, long}} {
		set := done(b.own(b.key(id), "me", long))
		set.KeepOutcome, set.KeepKey = keep[0], keep[1]
		if running := b.get(set.Key); running.OutcomeLeft != 0 {
			b.failf("before it is done, OutcomeLeft is %v", running.OutcomeLeft)
		}
		begun := time.Now()
		b.settle(set)
		for _, rec := range []once.Record{b.get(set.Key), b.claim(b.request(set.Key, "rival", long))} {
			took := time.Since(begun)
			most := long
			if b.learnsTime {
				most += timeApart // between two calls, the clock may have been learned better
			}
			if left := rec.OutcomeLeft; left != 0 && (left > most || left < long-took-time.Second) {
				b.failf("the outcome is kept for %v, and %v later OutcomeLeft is %v", long, took, left)
			}
		}
	}
}

func retentionKey(b *bench) {
	for _, forget := range []bool{false, true} {
		for name, status := range map[string]once.Status{"released": once.Absent, "done": once.Done} {
			k := b.key(name)
			if forget {
				k = b.key(name + " and forgotten")
			}
			set := done(b.own(k, "first", long))
			set.Status, set.KeepOutcome, set.KeepKey = status, short, 2*short
			b.settle(set)
			b.vanish(k)
			if forget {
				b.forgetAll()
			}
			if rec := b.get(k); !isZero(rec) {
				b.failf("a key past its KeepKey is %s", show(rec))
			}
			r := b.request(k, "second", long)
			b.wantRunning(b.claim(r), r, 1)
			rec := b.get(k)
			b.wantRunning(rec, r, 1)
			if rec.Reason != "" || !sameOutcome(rec.Outcome, once.Outcome{}) {
				b.failf("a key that is new has %s", show(rec))
			}
		}
	}
}

func retentionCount(b *bench) {
	k := b.key("1")
	b.settle(ending(b.own(k, "first", long), once.Absent))
	b.forgetAll()
	set := ending(b.own(k, "second", long), once.Absent)
	if set.Attempt != 2 {
		b.failf("the second attempt is number %d: the count of a released key was lost", set.Attempt)
	}
	set.KeepKey = short
	b.settle(set)
	b.vanish(k)
	if fence := b.own(k, "third", long); fence.Attempt != 1 {
		b.failf("a forgotten key starts at %d", fence.Attempt)
	}
}

// A key is released for a short time, and claimed again before or after that
// time is over. Then that time passes.
func retentionEndsWithAClaim(b *bench) {
	k := b.key("1")
	release := ending(b.own(k, "first", long), once.Absent)
	release.KeepKey = 4 * short
	b.settle(release)
	r := b.request(k, "second", long)
	b.claim(r)
	later := ending(b.own(b.key("later"), "me", long), once.Absent)
	later.KeepKey = release.KeepKey
	b.settle(later)
	b.vanish(later.Key)
	before := b.wantStatus(k, once.Running)
	b.forgetAll()
	b.unchanged("the end of a retention that a claim had ended", before, b.get(k))
	b.settle(done(fenceOf(before)))
}
