package storetest

import (
	"fmt"

	"github.com/effectively-once/once"
)

func takeoverRules() []rule {
	return []rule{
		{"takeover/lapsed", "A lapsed key is taken over by a claim that names its attempt: the next attempt, a new owner, the same age.", takeoverLapsed},
		{"takeover/unknown", "A key settled as Unknown is taken over likewise, and its reason is cleared.", takeoverUnknown},
		{"takeover/wrong-attempt", "A claim that names no attempt, or another one, does not take over.", takeoverWrongAttempt},
		{"takeover/free", "A claim that names an attempt takes a key that is free in any case, at the attempt that is due.", takeoverFree},
	}
}

func takeoverLapsed(b *bench) {
	k := b.key("1")
	b.takeOver(b.lapse(k, "old"))
}

func takeoverUnknown(b *bench) {
	k := b.key("1")
	fence := b.own(k, "old", long)
	b.settle(ending(fence, once.Unknown))
	b.takeOver(fence)
}

// takeOver does so three times, since each attempt must be counted on from the one before.
func (b *bench) takeOver(old once.Fence) {
	for _, who := range []string{"new", "newer", "newest"} {
		before := b.wantStatus(old.Key, once.Unknown)
		r := b.request(old.Key, who, long)
		r.Attempt = old.Attempt
		taken := b.claim(r)
		for _, rec := range []once.Record{taken, b.get(old.Key)} {
			b.wantRunning(rec, r, old.Attempt+1)
			if rec.Reason != "" || !sameOutcome(rec.Outcome, once.Outcome{}) {
				b.failf("a takeover left %s", show(rec))
			}
			if !rec.Created.Equal(before.Created) || rec.Age < before.Age {
				b.failf("a takeover made a key of age %v, created %v, one of age %v, created %v",
					before.Age, before.Created, rec.Age, rec.Created)
			}
		}
		old = holdOf(taken)
		b.settle(ending(old, once.Unknown))
	}
}

func takeoverWrongAttempt(b *bench) {
	k := b.key("1")
	first := b.lapse(k, "first")
	r := b.request(k, "second", long)
	r.Attempt = first.Attempt
	second := holdOf(b.claim(r))
	b.settle(ending(second, once.Unknown))
	before := b.get(k)
	for _, attempt := range []int64{0, -1, first.Attempt, second.Attempt + 1} {
		r := b.request(k, "third", long)
		r.Attempt = attempt
		doing := fmt.Sprintf("a claim that names %d where attempt %d is unknown", attempt, second.Attempt)
		b.unchanged(doing+", in its answer,", before, b.claim(r))
		b.unchanged(doing, before, b.get(k))
	}
}

func takeoverFree(b *bench) {
	r := b.request(b.key("never"), "me", long)
	r.Attempt = 7
	b.wantRunning(b.claim(r), r, 1)
	released := b.own(b.key("released"), "first", long)
	b.settle(ending(released, once.Absent))
	r = b.request(released.Key, "me", long)
	r.Attempt = 7
	b.wantRunning(b.claim(r), r, 2)
}
