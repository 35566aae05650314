package storetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

func claimRules() []rule {
	return []rule{
		{"claim/free",
			"A claim of a free key sets Running, the lease, the fingerprint, the cause, the owner, and Attempt 1.",
			claimFree},
		{"claim/cause",
			"A record has the cause of its latest claim, or none. The cause is not part of the key: a claim with another cause changes nothing.",
			claimCause},
		{"claim/taken",
			"A claim of a taken key changes nothing and returns the record that is in the way.",
			claimTaken},
		{"claim/own-repeated",
			"A repeated claim of the current owner changes nothing and returns the record.",
			claimOwnRepeated},
		{"claim/own-lapsed",
			"A repeated claim of the current owner changes nothing, even if its lease has lapsed.",
			claimOwnLapsed},
		{"claim/own-after-takeover",
			"A repeated claim of a former owner returns the record of the current one.",
			claimOwnAfterTakeover},
		{"claim/late",
			"A claim of an owner that has since released the key changes nothing.",
			claimLate},
		{"claim/released",
			"A released key is free. A claim raises Attempt by one, keeps Created, and clears the rest.",
			claimReleased},
		{"claim/attempts-rise",
			"Attempt rises with each claim while the key is known.",
			claimAttemptsRise},
		{"claim/done-stands",
			"A Done key is not free: a claim returns its outcome, even if it names the attempt.",
			claimDoneStands},
		{"claim/parked-stands",
			"A Parked key is not free, even if the claim names the attempt.",
			claimParkedStands},
		{"claim/expired-stands",
			"A key whose outcome is forgotten is Expired and not free, even if the claim names the attempt.",
			claimExpiredStands},
		{"claim/running-stands",
			"A Running key is not taken over, even if the claim names the attempt.",
			claimRunningStands},
		{"get/fresh", "Get returns what was written last, by any process.", getFresh},
		{"claim/slices",
			"Slices in arguments are not changed and not kept. Slices in results belong to the caller.",
			claimSlices},
	}
}

func claimFree(b *bench) {
	k := b.key("1")
	r := b.request(k, "me", long)
	for _, rec := range []once.Record{b.claim(r), b.get(k)} {
		b.wantRunning(rec, r, 1)
		if rec.Reason != "" || !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("a first claim returned %s", show(rec))
		}
		if rec.Created.IsZero() || rec.Updated.IsZero() || rec.Age < 0 || rec.Age > long/2 {
			b.failf("a first claim has the times created %v, updated %v, age %v", rec.Created, rec.Updated, rec.Age)
		}
	}
}

// wantRunning checks the record of a claim that succeeded.
func (b *bench) wantRunning(rec once.Record, r once.ClaimRequest, attempt int64) {
	switch {
	case isZero(rec):
		b.failf("claimed %+q, and there is no record", r.Key)
	case rec.Key != r.Key:
		b.failf("claimed %+q, the record is of %+q", r.Key, rec.Key)
	case rec.Status != once.Running || rec.Owner != r.Owner:
		b.failf("a claim of %q that must succeed returned %s", r.Key.ID, show(rec))
	case rec.Attempt != attempt:
		b.failf("this is attempt %d, the record says %s", attempt, show(rec))
	case !bytes.Equal(rec.Fingerprint, r.Fingerprint):
		b.failf("claimed with the fingerprint %q, the record has %q", r.Fingerprint, rec.Fingerprint)
	case rec.Cause != r.Cause:
		b.failf("claimed with the cause %x, the record has %x", r.Cause, rec.Cause)
	}
	b.wantLease(rec, r.Lease)
}

// wantLease checks a lease that was just set. It may have been rounded up to a
// second.
func (b *bench) wantLease(rec once.Record, lease time.Duration) {
	longer := time.Second
	if b.learnsTime {
		longer = timeApart
	}
	if rec.LeaseLeft > lease+longer || rec.LeaseLeft < lease-lease/4 {
		b.failf("a lease of %v given just now has %v left", lease, rec.LeaseLeft)
	}
}

func claimCause(b *bench) {
	r := b.request(b.key("none"), "me", long)
	r.Cause = [16]byte{}
	b.wantRunning(b.claim(r), r, 1)
	b.settle(done(fenceOf(b.get(r.Key))))
	before := b.get(r.Key)
	again := b.request(r.Key, "other", long)
	b.answered("a claim with a cause", before, b.claim(again))
	b.unchanged("a claim with a cause", before, b.get(r.Key))

	fence := b.own(b.key("put"), "me", long)
	b.settle(done(fence))
	before = b.get(fence.Key)
	again = b.request(fence.Key, "other", long)
	for _, cause := range [][16]byte{causeOf("other"), {}} {
		again.Cause = cause
		b.answered("a claim with another cause", before, b.claim(again))
		b.unchanged("a claim with another cause", before, b.get(fence.Key))
	}
	if before.Cause != causeOf("me") {
		b.failf("claimed with the cause %x, the record that is done has %x", causeOf("me"), before.Cause)
	}

	fence = b.own(b.key("released"), "me", long)
	b.settle(ending(fence, once.Absent))
	again = b.request(fence.Key, "other", long)
	again.Cause = [16]byte{}
	b.wantRunning(b.claim(again), again, 2)
	b.wantRunning(b.get(fence.Key), again, 2)
}

func claimTaken(b *bench) {
	k := b.key("1")
	b.own(k, "first", long)
	before := b.get(k)
	for i := range b.stores {
		rec, err := b.spread(i).Claim(b, b.request(k, "second", 2*long))
		b.must("Claim", err)
		b.answered("the claim of a rival", before, rec)
		b.unchanged("the claim of a rival", before, b.get(k))
	}
}

func claimOwnRepeated(b *bench) {
	k := b.key("1")
	r := b.request(k, "me", long)
	b.claim(r)
	before := b.get(k)
	r.Lease, r.Fingerprint = 10*long, []byte("another")
	for i := range b.stores {
		rec, err := b.spread(i).Claim(b, r)
		b.must("a repeated Claim", err)
		b.answered("an own claim repeated", before, rec)
		b.unchanged("an own claim repeated", before, b.get(k))
	}
	r.Attempt = before.Attempt
	b.unchanged("an own claim repeated by its attempt", before, b.claim(r))
}

func claimOwnLapsed(b *bench) {
	k := b.key("1")
	fence := b.lapse(k, "me")
	before := b.get(k)
	for _, attempt := range []int64{0, fence.Attempt} {
		r := b.request(k, "me", long)
		r.Attempt = attempt
		b.answered("an own claim that has lapsed, repeated", before, b.claim(r))
		b.unchanged("an own claim that has lapsed, repeated", before, b.get(k))
	}
}

func claimOwnAfterTakeover(b *bench) {
	k := b.key("1")
	fence := b.lapse(k, "old")
	r := b.request(k, "new", long)
	r.Attempt = fence.Attempt
	b.claim(r)
	before := b.get(k)
	b.answered("a claim of the former owner", before, b.claim(b.request(k, "old", long)))
	b.unchanged("a claim of the former owner", before, b.get(k))
}

func claimReleased(b *bench) {
	k := b.key("1")
	b.settle(ending(b.own(k, "first", long), once.Absent))
	released := b.get(k)
	r := b.request(k, "second", 2*long)
	r.Fingerprint = nil
	for _, rec := range []once.Record{b.claim(r), b.get(k)} {
		b.wantRunning(rec, r, 2)
		if rec.Reason != "" || !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("a claim clears the rest, but this one left %s", show(rec))
		}
		if !rec.Created.Equal(released.Created) {
			b.failf("the first claim was at %v, and after a release Created is %v", released.Created, rec.Created)
		}
	}
}

func claimLate(b *bench) {
	k := b.key("1")
	b.settle(ending(b.own(k, "me", long), once.Absent))
	released := b.get(k)
	b.answered("a claim of the owner that has released the key", released, b.claim(b.request(k, "me", long)))
	b.unchanged("a claim of the owner that has released the key", released, b.get(k))
	b.wantRunning(b.claim(b.request(k, "another", long)), b.request(k, "another", long), 2)
}

func claimAttemptsRise(b *bench) {
	k := b.key("1")
	for i := range 5 {
		who := string(rune('a' + i))
		fence := b.own(k, who, long)
		if fence.Attempt != int64(i+1) {
			b.failf("this is claim %d of the key, and attempt %d", i+1, fence.Attempt)
		}
		b.settle(ending(fence, once.Absent))
	}
}

// stands checks that no claim gets a key, and that all return its record.
func (b *bench) stands(k once.Key) {
	before := b.get(k)
	for _, attempt := range []int64{0, before.Attempt, before.Attempt + 1, -1} {
		for i, who := range []string{"rival", "me"} {
			r := b.request(k, who, long)
			r.Attempt = attempt
			rec, err := b.spread(i).Claim(b, r)
			b.must("Claim", err)
			b.answered("a claim", before, rec)
			b.unchanged("a claim", before, b.get(k))
		}
	}
}

func claimDoneStands(b *bench) {
	k := b.key("1")
	set := done(b.own(k, "me", long))
	b.settle(set)
	b.stands(k)
	if rec := b.claim(b.request(k, "rival", long)); !sameOutcome(rec.Outcome, set.Outcome) {
		b.failf("a duplicate returned %s", show(rec))
	}
}

func claimParkedStands(b *bench) {
	k := b.key("1")
	b.settle(ending(b.own(k, "me", long), once.Parked))
	b.stands(k)
}

func claimExpiredStands(b *bench) {
	k := b.key("1")
	set := done(b.own(k, "me", long))
	set.KeepOutcome = short
	b.settle(set)
	b.become(k, once.Expired)
	b.stands(k)
}

func claimRunningStands(b *bench) {
	k := b.key("1")
	b.own(k, "me", long)
	b.stands(k)
}

func getFresh(b *bench) {
	k := b.key("1")
	everywhere := func(want once.Status, attempt int64) {
		for _, s := range b.stores {
			rec, err := s.Get(b, k)
			if b.must("Get", err); rec.Status != want || rec.Attempt != attempt {
				b.failf("attempt %d of the key is %v, and another process reads %s", attempt, want, show(rec))
			}
		}
	}
	everywhere(once.Absent, 0)
	for attempt := int64(1); attempt <= 3; attempt++ {
		writer := b.spread(int(attempt))
		rec, err := writer.Claim(b, b.request(k, fmt.Sprint(attempt), long))
		b.must("Claim", err)
		everywhere(once.Running, attempt)
		b.must("Settle", writer.Settle(b, ending(fenceOf(rec), once.Absent)))
		everywhere(once.Absent, attempt)
	}
}

func claimSlices(b *bench) {
	k := b.key("1")
	r := b.request(k, "me", long)
	r.Fingerprint = []byte("print")
	fence := fenceOf(b.claim(r))
	if string(r.Fingerprint) != "print" {
		b.failf("Claim changed its argument to %q", r.Fingerprint)
	}
	r.Fingerprint[0] = 'X'
	set := done(fence)
	b.settle(set)
	if string(set.Outcome.Body) != string(done(fence).Outcome.Body) {
		b.failf("Settle changed its argument to %q", set.Outcome.Body)
	}
	set.Outcome.Body[0] = 'X'
	for range 2 { // changes to the results of the first round must not affect the second
		for _, rec := range []once.Record{b.get(k), b.claim(b.request(k, "rival", long))} {
			if string(rec.Fingerprint) != "print" || !sameOutcome(rec.Outcome, done(fence).Outcome) {
				b.failf("a slice is shared between the store and its caller: %s", show(rec))
			}
			rec.Fingerprint[0], rec.Outcome.Body[0] = 'Y', 'Y'
		}
	}
}
