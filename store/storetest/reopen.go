package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func reopenRules() []rule {
	return []rule{
		{"reopen/frees",
			"Reopen makes a Done or Expired record Absent. Its outcome is gone, and its attempt stays counted, with the reason.",
			reopenFrees},
		{"reopen/next",
			"The next claim of a reopened key takes it, with any input, as the next attempt. The former owner is fenced.",
			reopenNext},
		{"reopen/stale",
			"Reopen returns ErrLeaseLost and changes nothing if the fence is not that of the attempt that is done.",
			reopenStale},
		{"reopen/not-done",
			"Reopen returns ErrLeaseLost and changes nothing if the key is not done.",
			reopenNotDone},
		{"reopen/repeated",
			"A repeated Reopen returns nil, and ErrLeaseLost once somebody has claimed the key.",
			reopenRepeated},
		{"reopen/late",
			"After a Reopen, late calls of the former owner change nothing.",
			reopenLate},
		{"reopen/kept",
			"Attempt and reason of a reopened key are kept for keepKey, however short the record was kept before, and then forgotten.",
			reopenKept},
		{"reopen/race",
			"Of several claims beside several calls of Reopen, one takes the key, and Attempt rises.",
			reopenRace},
		{"reopen/do",
			"Do replays before Reopen, runs once after it as the next attempt, and replays that.",
			reopenDo},
	}
}

func (b *bench) reopen(fence once.Fence) error {
	return capability[store.Reopener](b, b.store).Reopen(b, fence, long, "ana: charged to the wrong card")
}

func reopenFrees(b *bench) {
	fences := b.fencesByState("")
	for _, from := range []string{"done", "expired"} {
		fence := fences[from]
		before := b.get(fence.Key)
		b.must("Reopen of a key that is "+from, b.reopen(fence))
		rec := b.wantStatus(fence.Key, once.Absent)
		if rec.Key != fence.Key || rec.Attempt != fence.Attempt || rec.Owner != [16]byte{} || rec.LeaseLeft != 0 ||
			rec.Reason != "ana: charged to the wrong card" || !rec.Created.Equal(before.Created) || rec.Updated.Before(before.Updated) {
			b.failf("after Reopen the record of %+q is %s", fence.Key, show(rec))
		}
		if !sameOutcome(rec.Outcome, once.Outcome{}) {
			b.failf("after Reopen there is an outcome: %s", show(rec))
		}
		b.forgetAll()
		b.unchanged("Forget of a key that was reopened", rec, b.get(fence.Key))
	}
}

func reopenNext(b *bench) {
	first := b.own(b.key("1"), "first", long)
	b.settle(done(first))
	b.must("Reopen", b.reopen(first))
	r := b.request(first.Key, "second", long)
	rec := b.claim(r)
	b.wantRunning(rec, r, 2)
	if rec = b.get(first.Key); rec.Reason != "" || string(rec.Fingerprint) != "print of second" {
		b.failf("the attempt after Reopen has what was before it: %s", show(rec))
	}
	for _, status := range ends {
		b.refused(fmt.Sprintf("Settle of the attempt before as %v", status), first.Key, func() error {
			return b.store.Settle(b, ending(first, status))
		})
	}
	b.refused("Extend of the attempt before", first.Key, func() error { return b.store.Extend(b, first, 2*long) })
	b.refused("Reopen of a key that is running", first.Key, func() error { return b.reopen(first) })
	set := done(fenceOf(rec))
	set.Outcome.Body = []byte("another answer")
	b.settle(set)
	b.refused("Reopen of the attempt before", first.Key, func() error { return b.reopen(first) })
	if rec := b.wantStatus(first.Key, once.Done); !sameOutcome(rec.Outcome, set.Outcome) {
		b.failf("the attempt after Reopen was settled, and the record is %s", show(rec))
	}
}

func reopenStale(b *bench) {
	fences := b.fencesByState("")
	for _, name := range []string{"done", "expired"} {
		for wrong, fence := range b.stale(fences[name]) {
			b.refused(fmt.Sprintf("Reopen of a key that is %s with %s", name, wrong), fence.Key, func() error { return b.reopen(fence) })
		}
	}
	never := once.Fence{Key: b.key("never"), Owner: b.token("me"), Attempt: 1}
	b.wantErr("Reopen of a key that was never seen", b.reopen(never), once.ErrLeaseLost)
	gone := done(b.own(b.key("gone"), "me", long))
	gone.KeepOutcome, gone.KeepKey = short, 2*short
	b.settle(gone)
	b.vanish(gone.Key)
	b.wantErr("Reopen of a key that is forgotten", b.reopen(gone.Fence), once.ErrLeaseLost)
	for _, fence := range []once.Fence{never, gone.Fence} {
		if rec := b.get(fence.Key); !isZero(rec) {
			b.failf("the record is %s", show(rec))
		}
	}
}

func reopenNotDone(b *bench) {
	fences := b.fencesByState("")
	for _, name := range []string{"running", "lapsed", "unknown", "parked"} {
		b.refused("Reopen of a key that is "+name, fences[name].Key, func() error { return b.reopen(fences[name]) })
	}
}

func reopenRepeated(b *bench) {
	fence := b.own(b.key("1"), "me", long)
	b.settle(done(fence))
	b.must("Reopen", b.reopen(fence))
	before := b.get(fence.Key)
	for i := range b.stores {
		b.must("Reopen, repeated", capability[store.Reopener](b, b.spread(i)).Reopen(b, fence, 2*long, "again"))
		b.unchanged("Reopen, repeated", before, b.get(fence.Key))
	}
}

func reopenLate(b *bench) {
	fence := b.own(b.key("1"), "me", long)
	b.settle(done(fence))
	b.must("Reopen", b.reopen(fence))
	before := b.get(fence.Key)
	rec := b.claim(b.request(fence.Key, "me", long))
	b.answered("a late claim", before, rec)
	b.unchanged("a late claim", before, b.get(fence.Key))
	for _, status := range []once.Status{once.Done, once.Unknown, once.Parked} {
		b.refused(fmt.Sprintf("a late settlement as %v", status), fence.Key, func() error { return b.store.Settle(b, ending(fence, status)) })
	}
	b.refused("a late extension", fence.Key, func() error { return b.store.Extend(b, fence, long) })
}

func reopenKept(b *bench) {
	brief := b.inItsTime("brief", 8*short)
	other := done(b.own(b.key("other"), "me", long))
	b.settle(other)
	b.must("Reopen", capability[store.Reopener](b, b.store).Reopen(b, other.Fence, short, "for a moment"))
	same := done(b.own(b.key("same"), "me", long))
	same.KeepOutcome, same.KeepKey = brief.KeepKey, brief.KeepKey
	b.settle(same)
	b.vanish(same.Key)
	b.vanish(other.Key)
	b.forgetAll()
	b.wantStatus(brief.Key, once.Absent)
	if fence := b.own(brief.Key, "next", long); fence.Attempt != 2 {
		b.failf("after Reopen the next attempt is number %d", fence.Attempt)
	}
	if fence := b.own(other.Key, "next", long); fence.Attempt != 1 {
		b.failf("a key whose count is forgotten starts at %d", fence.Attempt)
	}
}

// inItsTime reopens a key before it is forgotten. On a slow machine it takes
// several attempts.
func (b *bench) inItsTime(id string, keep time.Duration) once.Settlement {
	set := done(b.own(b.key(fmt.Sprint(id, keep)), "me", long))
	set.KeepOutcome, set.KeepKey = keep, keep
	b.settle(set)
	err := b.reopen(set.Fence)
	if errors.Is(err, once.ErrLeaseLost) && isZero(b.get(set.Key)) {
		return b.inItsTime(id, 2*keep)
	}
	b.must("Reopen", err)
	return set
}

func reopenRace(b *bench) {
	const rounds, claimers, reopeners = 8, 4, 4
	for round := range rounds {
		fence := b.own(b.key(fmt.Sprint(round)), "first", long)
		b.settle(done(fence))
		won := make([]bool, claimers)
		b.together(claimers+reopeners, func(i int) {
			if i >= claimers {
				b.persist("Reopen", func() error {
					err := capability[store.Reopener](b, b.spread(i)).Reopen(b, fence, long, "race")
					if errors.Is(err, once.ErrLeaseLost) { // another Reopen was faster, and so was a claim
						return nil
					}
					return err
				})
				return
			}
			r := b.request(fence.Key, fmt.Sprint("rival ", i), long)
			r.Wait = slowest
			b.until("a key that is reopened is claimed", func() bool {
				rec, err := b.spread(i).Claim(b, r)
				won[i] = err == nil && rec.Owner == r.Owner && rec.Status == once.Running
				return err == nil && rec.Status != once.Done
			})
		})
		winners := 0
		for _, one := range won {
			if one {
				winners++
			}
		}
		if rec := b.get(fence.Key); winners != 1 || rec.Status != once.Running || rec.Attempt != 2 {
			b.failf("%d claims took a key that was reopened once, and its record is %s", winners, show(rec))
		}
	}
}

func reopenDo(b *bench) {
	op := &once.Operation[int]{Name: b.key("").Operation, OnUnknown: once.Park}
	runs := 0
	call := func() (int, once.Report) {
		var report once.Report
		got, err := once.Do(b, b.store, op.For("1").Report(&report), func(context.Context, once.Key) (int, error) {
			runs++
			return runs, nil
		})
		b.must("Do", err)
		return got, report
	}
	for n, want := range []once.Report{{Attempt: 1}, {Attempt: 1, Replayed: true}, {Attempt: 2}, {Attempt: 2, Replayed: true}} {
		if n == 2 {
			rec := b.get(op.For("1").Key())
			b.must("Reopen", store.Reopen(b, b.store, rec, "ana: charged to the wrong card"))
			b.wantErr("Reopen without a reason", store.Reopen(b, b.store, rec, ""), once.ErrInvalid)
		}
		if got, report := call(); got != n/2+1 || report != want {
			b.failf("call %d of Do returned %d, %+v; want %d, %+v", n+1, got, report, n/2+1, want)
		}
	}
}
