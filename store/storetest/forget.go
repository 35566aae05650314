package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

func forgetRules() []rule {
	return []rule{
		{"forget/bounded",
			"Forget changes at most limit records and returns how many. Fewer than limit means that nothing is left.",
			forgetBounded},
		{"forget/two-stages",
			"Forget drops outcomes past their KeepOutcome and keys past their KeepKey, and nothing earlier.",
			forgetTwoStages},
		{"forget/never-unsettled",
			"Running, Unknown and Parked records are never forgotten.",
			forgetNeverUnsettled},
		{"forget/interrupted",
			"Forget may be interrupted anywhere: no part of an old outcome shows up under a key that is claimed again.",
			forgetInterrupted},
		{"forget/beside-claims",
			"Forget does not affect claims of the same keys at the same time.",
			forgetBesideClaims},
	}
}

// forgetAll calls Forget until nothing is left to do.
func (b *bench) forgetAll() (total int) {
	const limit = 100
	for {
		n, err := b.store.Forget(b, limit)
		b.must("Forget", err)
		if n < 0 || n > limit {
			b.failf("Forget with a limit of %d returned %d", limit, n)
		}
		total += n
		if n < limit {
			return total
		}
	}
}

// doneFor returns a Done key with the given retention.
func (b *bench) doneFor(id string, keepOutcome, keepKey time.Duration) once.Key {
	set := done(b.own(b.key(id), "me", long))
	set.KeepOutcome, set.KeepKey = keepOutcome, keepKey
	b.settle(set)
	return set.Key
}

func forgetBounded(b *bench) {
	b.forgetAll()
	b.forgetsInSteps("outcome", long, once.Expired)
	b.forgetsInSteps("key", 2*short, once.Absent)
}

// forgetsInSteps lets more records become due than one call may forget.
func (b *bench) forgetsInSteps(what string, keepKey time.Duration, then once.Status) {
	const due, limit = 7, 2
	var keys []once.Key
	for i := range due {
		keys = append(keys, b.doneFor(fmt.Sprint(what, i), short, keepKey))
	}
	for _, k := range keys {
		b.become(k, then)
	}
	total := 0
	for n := limit; n == limit; total += n {
		var err error
		n, err = b.store.Forget(b, limit)
		b.must("Forget", err)
		if n > limit {
			b.failf("Forget with a limit of %d changed %d records", limit, n)
		}
		if total > 100*due {
			b.failf("Forget with a limit of %d has changed %d records, and says that there is more", limit, total)
		}
	}
	if total < due && !b.forgetsElsewhere {
		b.failf("%d %ss were due; Forget with a limit of %d says that it dropped %d and that nothing is left", due, what, limit, total)
	}
	for _, k := range keys {
		b.wantStatus(k, then)
	}
	if n := b.forgetAll(); n >= due && !b.forgetsElsewhere {
		b.failf("Forget found %d records again of which it had said that they were done with", n)
	}
}

func forgetTwoStages(b *bench) {
	kept := b.doneFor("kept", long, long)
	outcome := b.doneFor("outcome", short, long)
	key := b.doneFor("key", short, 2*short)
	before := b.get(kept)
	b.become(outcome, once.Expired)
	b.vanish(key)
	for range 2 {
		b.forgetAll()
		b.unchanged("Forget", before, b.get(kept))
		b.wantStatus(outcome, once.Expired)
		if rec := b.get(key); !isZero(rec) {
			b.failf("a key past its KeepKey is %s", show(rec))
		}
	}
}

// Each key here was released before, with a KeepKey that is over when Forget
// runs.
func forgetNeverUnsettled(b *bench) {
	for _, name := range []string{"running", "lapsed", "unknown", "parked"} {
		release := ending(b.own(b.key(name), "before", long), once.Absent)
		release.KeepKey = short
		b.settle(release)
	}
	fences := map[string]once.Fence{
		"running": b.own(b.key("running"), "me", long),
		"lapsed":  b.lapse(b.key("lapsed"), "me"),
		"unknown": b.own(b.key("unknown"), "me", long),
		"parked":  b.own(b.key("parked"), "me", long),
	}
	for name, status := range map[string]once.Status{"unknown": once.Unknown, "parked": once.Parked} {
		set := ending(fences[name], status)
		set.KeepOutcome, set.KeepKey = short, short // not for these
		b.settle(set)
	}
	b.vanish(b.doneFor("time passes", short, 2*short))
	before := make(map[string]once.Record)
	for name, fence := range fences {
		before[name] = b.get(fence.Key)
	}
	b.forgetAll()
	for name, fence := range fences {
		b.unchanged("Forget beside a key that is "+name, before[name], b.get(fence.Key))
		b.must("a settlement after Forget", b.store.Settle(b, done(fence)))
	}
}

func forgetInterrupted(b *bench) {
	for i := range 16 {
		k := b.doneFor(fmt.Sprint(i), short, 2*short)
		b.vanish(k)
		ctx, cancel := context.WithTimeout(b, time.Duration(i*i)*10*time.Microsecond)
		_, _ = b.store.Forget(ctx, 100) // it may fail
		cancel()
		if rec := b.get(k); !isZero(rec) {
			b.failf("after an interrupted Forget a forgotten key is %s", show(rec))
		}
		r := b.request(k, "second", long)
		rec := b.claim(r)
		if b.wantRunning(rec, r, 1); !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("a key that was claimed again has the outcome of a forgotten one: %s", show(rec))
		}
		if i%2 == 0 { // for the others Forget also runs after the key is in use again
			b.forgetAll()
		}
		b.wantRunning(b.get(k), r, 1)
		set := ending(fenceOf(rec), once.Done)
		b.settle(set)
		if rec := b.wantStatus(k, once.Done); !sameOutcome(rec.Outcome, set.Outcome) {
			b.failf("the outcome of a forgotten key answers for it: %s", show(rec))
		}
	}
	b.forgetAll()
}

func forgetBesideClaims(b *bench) {
	const forgetters, rounds, n = 2, 4, 12
	for round := range rounds {
		requests := make([]once.ClaimRequest, n)
		for i := range requests {
			requests[i] = b.request(b.doneFor(fmt.Sprint(round, i), short, 2*short), fmt.Sprint(i), long)
			requests[i].Wait = slowest
		}
		for _, r := range requests {
			b.vanish(r.Key)
		}
		b.together(forgetters+n, func(i int) {
			if i < forgetters {
				b.persist("Forget", func() error {
					_, err := b.spread(i).Forget(b, n)
					return err
				})
				return
			}
			b.persist("Claim", func() error {
				_, err := b.spread(i).Claim(b, requests[i-forgetters])
				return err
			})
		})
		b.forgetAll()
		for _, r := range requests {
			b.wantRunning(b.get(r.Key), r, 1)
		}
	}
}
