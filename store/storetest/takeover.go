package storetest

import (
	"fmt"

	"github.com/effectively-once/once"
)

func takeoverRules() []rule {
	return []rule{
		{"takeover/lapsed",
			"A claim that names the attempt takes over a lapsed key: the next attempt, a new owner, the same Created.",
			takeoverLapsed},
		{"takeover/unknown",
			"A claim that names the attempt takes over a key that was settled as Unknown, and clears its reason.",
			takeoverUnknown},
		{"takeover/wrong-attempt",
			"A claim that names no attempt, or another one, does not take over.",
			takeoverWrongAttempt},
		{"takeover/free",
			"A claim that names an attempt takes a free key all the same, as its next attempt.",
			takeoverFree},
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

// takeOver takes a key over three times, because each attempt must continue the
// count.
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
				b.failf("a takeover changed a key of Age %v, Created %v, to Age %v, Created %v",
					before.Age, before.Created, rec.Age, rec.Created)
			}
		}
		old = fenceOf(taken)
		b.settle(ending(old, once.Unknown))
	}
}

func takeoverWrongAttempt(b *bench) {
	k := b.key("1")
	first := b.lapse(k, "first")
	r := b.request(k, "second", long)
	r.Attempt = first.Attempt
	second := fenceOf(b.claim(r))
	b.settle(ending(second, once.Unknown))
	before := b.get(k)
	for _, attempt := range []int64{0, -1, first.Attempt, second.Attempt + 1} {
		r := b.request(k, "third", long)
		r.Attempt = attempt
		doing := fmt.Sprintf("a claim that names %d where attempt %d is unknown", attempt, second.Attempt)
		b.answered(doing, before, b.claim(r))
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
