package storetest

import (
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

func leaseRules() []rule {
	return []rule{
		{"lease/lapses",
			"A claim whose lease has lapsed is Unknown, and LeaseLeft is negative and falls.",
			leaseLapses},
		{"lease/lapsed-is-not-free",
			"A key whose lease has lapsed is not free.",
			leaseLapsedIsNotFree},
		{"lease/own-clock",
			"Leases are measured by the store's clock, which all its users share.",
			leaseOwnClock},
		{"lease/apart-from-retention",
			"A lease ends at its time, however long records are kept.",
			leaseApartFromRetention},
		{"extend/moves-the-end",
			"Extend sets the lease to end d from now, whatever was left.",
			extendMovesTheEnd},
		{"extend/stale",
			"Extend returns ErrLeaseLost and changes nothing if the fence is not current.",
			extendStale},
		{"extend/lapsed",
			"Extend returns ErrLeaseLost if the lease has lapsed: a lapsed lease stays lapsed.",
			extendLapsed},
		{"extend/not-running",
			"Extend returns ErrLeaseLost for a key that is not Running.",
			extendNotRunning},
	}
}

func leaseLapses(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", short)
	first := b.become(k, once.Unknown)
	if first.LeaseLeft >= 0 || first.Owner != fence.Owner || first.Attempt != fence.Attempt {
		b.failf("a lapsed claim reads as %s", show(first))
	}
	b.until("LeaseLeft of a lapsed claim falls", func() bool { return b.wantStatus(k, once.Unknown).LeaseLeft < first.LeaseLeft-short })
}

func leaseLapsedIsNotFree(b *bench) {
	k := b.key("1")
	b.lapse(k, "me")
	before := b.get(k)
	for i := range b.stores {
		rec, err := b.spread(i).Claim(b, b.request(k, "rival", long))
		b.must("Claim", err)
		b.answered("the claim of a rival that names no attempt", before, rec)
		b.unchanged("the claim of a rival that names no attempt", before, b.get(k))
	}
}

func leaseOwnClock(b *bench) {
	for i, s := range b.stores {
		r := b.request(b.key(fmt.Sprint(i)), "me", 10*time.Minute)
		if _, err := s.Claim(b, r); err != nil {
			b.failf("Claim: %v", err)
		}
		brief := b.request(b.key(fmt.Sprint("brief ", i)), "me", short)
		if _, err := s.Claim(b, brief); err != nil {
			b.failf("Claim: %v", err)
		}
		for _, other := range b.stores {
			rec, err := other.Get(b, r.Key)
			b.must("Get", err)
			b.wantRunning(rec, r, 1)
			if rec.Age < 0 || rec.Age > 2*time.Minute {
				b.failf("a key claimed just now has the age %v", rec.Age)
			}
			b.until("a short lease has lapsed for every user of the store", func() bool {
				rec, err := other.Get(b, brief.Key)
				b.must("Get", err)
				return rec.Status == once.Unknown
			})
		}
	}
}

func leaseApartFromRetention(b *bench) {
	k := b.key("1")
	b.settle(ending(b.own(k, "first", long), once.Absent))
	b.own(k, "second", short)
	b.become(k, once.Unknown)
}

func extendMovesTheEnd(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	before := b.get(k)
	for _, d := range []time.Duration{2 * long, 2 * long, long / 2} {
		b.must("Extend", b.store.Extend(b, fence, d))
		rec := b.wantStatus(k, once.Running)
		b.wantLease(rec, d)
		rec.LeaseLeft, rec.Updated = before.LeaseLeft, before.Updated
		b.unchanged("Extend", before, rec)
	}
	b.must("Extend", b.store.Extend(b, fence, short))
	b.become(k, once.Unknown)
}

func extendStale(b *bench) {
	k := b.key("1")
	current := b.own(k, "me", long)
	stale := b.stale(current)
	elsewhere := current
	elsewhere.Key = b.key("never")
	for wrong, fence := range stale {
		b.refused("Extend with "+wrong, k, func() error { return b.store.Extend(b, fence, 2*long) })
	}
	b.refused("Extend of another key", elsewhere.Key, func() error { return b.store.Extend(b, elsewhere, long) })
}

func extendLapsed(b *bench) {
	k := b.key("1")
	fence := b.lapse(k, "me")
	b.refused("Extend of a lapsed lease", k, func() error { return b.store.Extend(b, fence, long) })
	b.wantStatus(k, once.Unknown)
}

func extendNotRunning(b *bench) {
	for name, fence := range b.fencesByState("") {
		if name == "running" {
			continue
		}
		b.refused("Extend of a key that is "+name, fence.Key, func() error { return b.store.Extend(b, fence, long) })
	}
}
