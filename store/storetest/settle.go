package storetest

import (
	"fmt"

	"github.com/effectively-once/once"
)

func settleRules() []rule {
	return []rule{
		{"settle/done",
			"Done keeps the outcome, Owner, Attempt, Fingerprint and Created.",
			settleDone},
		{"settle/released",
			"Absent frees the key at once. Attempt stays counted, and the reason is kept.",
			settleReleased},
		{"settle/unknown", "Unknown ends the lease now: LeaseLeft is negative.", settleUnknown},
		{"settle/parked", "Parked keeps Owner and Attempt, and the reason.", settleParked},
		{"settle/stale",
			"A settlement whose fence is not current is ErrLeaseLost and changes nothing.",
			settleStale},
		{"settle/never-seen",
			"A settlement of a key that nobody has claimed is ErrLeaseLost and changes nothing.",
			settleNeverSeen},
		{"settle/after-takeover",
			"A former owner is refused, and its successor is not.",
			settleAfterTakeover},
		{"settle/after-reclaim",
			"A former owner is refused, even if its key is free again or was claimed again.",
			settleAfterReclaim},
		{"settle/late",
			"A late settlement is applied to a lapsed, Unknown or Parked record while the fence is current.",
			settleLate},
		{"settle/done-is-final",
			"Done is final: another settlement is ErrLeaseLost, and so is Done with another outcome.",
			settleDoneIsFinal},
		{"settle/parked-stays", "Parked does not become Unknown again.", settleParkedStays},
		{"settle/released-is-ended",
			"A released attempt cannot be settled in another way.",
			settleReleasedIsEnded},
		{"settle/repeated", "A repeated settlement that was applied returns nil.", settleRepeated},
		{"settle/repeated-late", "A repeated Done returns nil even if its outcome has expired, and does not bring the outcome back.",
			settleRepeatedLate},
		{"settle/no-such-end",
			"A settlement with a status other than Done, Parked, Unknown or Absent is ErrInvalid.",
			settleNoSuchEnd},
	}
}

func settleDone(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	running := b.get(k)
	b.settle(done(fence))
	rec := b.wantStatus(k, once.Done)
	b.ended(rec, running, done(fence))
	if rec.Owner != fence.Owner || rec.LeaseLeft != 0 || !sameOutcome(rec.Outcome, done(fence).Outcome) {
		b.failf("after Done the record is %s", show(rec))
	}
}

// ended checks what a settlement of any status keeps of the record, and what it
// sets.
func (b *bench) ended(rec, running once.Record, set once.Settlement) {
	switch {
	case rec.Key != running.Key || rec.Attempt != running.Attempt:
		b.failf("%v left attempt %d of %+q as %s of %+q", set.Status, running.Attempt, running.Key, show(rec), rec.Key)
	case string(rec.Fingerprint) != string(running.Fingerprint):
		b.failf("%v changed the fingerprint from %q to %q", set.Status, running.Fingerprint, rec.Fingerprint)
	case !rec.Created.Equal(running.Created):
		b.failf("%v changed the time of the first claim from %v to %v", set.Status, running.Created, rec.Created)
	case rec.Reason != set.Reason:
		b.failf("%v was settled because %q, and the record says %q", set.Status, set.Reason, rec.Reason)
	case set.Status != once.Done && !sameOutcome(rec.Outcome, once.Outcome{}):
		b.failf("%v has an outcome: %s", set.Status, show(rec))
	}
}

func settleReleased(b *bench) {
	k := b.key("1")
	set := ending(b.own(k, "me", long), once.Absent)
	set.Outcome = done(set.Fence).Outcome // not for this status
	b.settle(set)
	rec := b.wantStatus(k, once.Absent)
	if rec.Key != k || rec.Attempt != 1 || rec.Owner != [16]byte{} || rec.LeaseLeft != 0 || rec.Reason != set.Reason {
		b.failf("after a release the record of %+q is %s of %+q", k, show(rec), rec.Key)
	}
	if !sameOutcome(rec.Outcome, once.Outcome{}) {
		b.failf("after a release there is an outcome: %s", show(rec))
	}
}

func settleUnknown(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	running := b.get(k)
	set := ending(fence, once.Unknown)
	set.Outcome = done(fence).Outcome
	b.settle(set)
	rec := b.wantStatus(k, once.Unknown)
	b.ended(rec, running, set)
	if rec.Owner != fence.Owner || rec.LeaseLeft >= 0 || rec.LeaseLeft < -long/2 {
		b.failf("after Unknown the record is %s", show(rec))
	}
	b.until("LeaseLeft of an unknown key falls", func() bool { return b.get(k).LeaseLeft < rec.LeaseLeft-short })
}

func settleParked(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	running := b.get(k)
	set := ending(fence, once.Parked)
	set.Outcome = done(fence).Outcome
	b.settle(set)
	rec := b.wantStatus(k, once.Parked)
	b.ended(rec, running, set)
	if rec.Owner != fence.Owner {
		b.failf("after Parked the record is %s", show(rec))
	}
}

// fencesByState returns keys in all states, by the way to get there.
func (b *bench) fencesByState(prefix string) map[string]once.Fence {
	fences := map[string]once.Fence{
		"running": b.own(b.key(prefix+"running"), "me", long),
		"lapsed":  b.lapse(b.key(prefix+"lapsed"), "me"),
	}
	for name, status := range map[string]once.Status{"unknown": once.Unknown, "parked": once.Parked, "released": once.Absent} {
		fences[name] = b.own(b.key(prefix+name), "me", long)
		b.settle(ending(fences[name], status))
	}
	fences["done"] = b.own(b.key(prefix+"done"), "me", long)
	b.settle(done(fences["done"]))
	expired := done(b.own(b.key(prefix+"expired"), "me", long))
	expired.KeepOutcome = short
	b.settle(expired)
	b.become(expired.Key, once.Expired)
	fences["expired"] = expired.Fence
	return fences
}

var ends = []once.Status{once.Absent, once.Unknown, once.Parked, once.Done}

func settleStale(b *bench) {
	for name, current := range b.fencesByState("") {
		for wrong, fence := range b.stale(current) {
			for _, status := range ends {
				b.refused(fmt.Sprintf("Settle of a key that is %s as %v with %s", name, status, wrong), current.Key, func() error {
					return b.store.Settle(b, ending(fence, status))
				})
			}
		}
	}
}

// stale returns fences that differ from the current one in one field.
func (b *bench) stale(fence once.Fence) map[string]once.Fence {
	token, next, before, nobody := fence, fence, fence, fence
	token.Owner = b.token("somebody else")
	next.Attempt++
	before.Attempt--
	nobody.Owner = [16]byte{}
	return map[string]once.Fence{"another token": token, "a later attempt": next, "an earlier attempt": before, "no token": nobody}
}

func settleNeverSeen(b *bench) {
	k := b.key("never")
	for name, fence := range map[string]once.Fence{
		"a fence":      {Key: k, Owner: b.token("me"), Attempt: 1},
		"an empty one": {Key: k},
	} {
		for _, status := range ends {
			b.wantErr(fmt.Sprintf("Settle as %v with %s", status, name), b.store.Settle(b, ending(fence, status)), once.ErrLeaseLost)
			if rec := b.get(k); !isZero(rec) {
				b.failf("the record is %s", show(rec))
			}
		}
	}
}

func settleAfterTakeover(b *bench) {
	k := b.key("1")
	old := b.lapse(k, "old")
	r := b.request(k, "new", long)
	r.Attempt = old.Attempt
	current := fenceOf(b.claim(r))
	for _, status := range ends {
		b.refused(fmt.Sprintf("Settle of the former holder as %v", status), k, func() error {
			return b.store.Settle(b, ending(old, status))
		})
	}
	b.refused("Extend of the former holder", k, func() error { return b.store.Extend(b, old, 2*long) })
	b.settle(done(current))
}

func settleAfterReclaim(b *bench) {
	k := b.key("1")
	old := b.own(k, "old", long)
	release := ending(old, once.Absent)
	release.KeepKey = short
	b.settle(release)
	b.vanish(k)
	b.wantErr("Settle of a key that is forgotten", b.store.Settle(b, done(old)), once.ErrLeaseLost)
	if rec := b.get(k); !isZero(rec) {
		b.failf("the record is %s", show(rec))
	}
	anew := b.own(k, "new", long)
	if anew.Attempt != old.Attempt {
		b.failf("a forgotten key starts again at %d, but is at %d", old.Attempt, anew.Attempt)
	}
	for _, status := range ends {
		b.refused("Settle of the holder before the key was forgotten", k, func() error {
			return b.store.Settle(b, ending(old, status))
		})
	}
	b.refused("Extend of the holder before the key was forgotten", k, func() error { return b.store.Extend(b, old, 2*long) })
}

func settleLate(b *bench) {
	for _, status := range []once.Status{once.Done, once.Absent, once.Parked} {
		fences := b.fencesByState(status.String() + "-from-")
		for _, from := range []string{"lapsed", "unknown", "parked"} {
			set := ending(fences[from], status)
			if status == once.Done {
				set = done(fences[from])
			}
			b.must(fmt.Sprintf("a late settlement as %v from %s", status, from), b.store.Settle(b, set))
			rec := b.wantStatus(set.Key, status)
			if !sameOutcome(rec.Outcome, set.Outcome) || rec.Attempt != 1 || rec.Reason != set.Reason {
				b.failf("settled late as %v, the record is %s", status, show(rec))
			}
		}
	}
}

func settleDoneIsFinal(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	b.settle(done(fence))
	for _, status := range []once.Status{once.Absent, once.Unknown, once.Parked} {
		b.refused(fmt.Sprintf("Settle of a done key as %v", status), k, func() error { return b.store.Settle(b, ending(fence, status)) })
	}
	for name, change := range map[string]func(*once.Outcome){
		"body":     func(o *once.Outcome) { o.Body = append(o.Body, 0) },
		"no body":  func(o *once.Outcome) { o.Body = nil },
		"type":     func(o *once.Outcome) { o.ContentType = "text/X-answer" },
		"rejected": func(o *once.Outcome) { o.Rejected = true },
		"omitted":  func(o *once.Outcome) { o.Omitted = true },
		"sum":      func(o *once.Outcome) { o.Sum++ },
	} {
		set := done(fence)
		change(&set.Outcome)
		b.refused("Settle with an outcome that differs in its "+name, k, func() error { return b.store.Settle(b, set) })
	}
}

func settleParkedStays(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	b.settle(ending(fence, once.Parked))
	b.refused("Settle of a parked key as Unknown", k, func() error { return b.store.Settle(b, ending(fence, once.Unknown)) })
}

func settleReleasedIsEnded(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	b.settle(ending(fence, once.Absent))
	for _, status := range []once.Status{once.Done, once.Unknown, once.Parked} {
		b.refused(fmt.Sprintf("Settle of a released attempt as %v", status), k, func() error { return b.store.Settle(b, ending(fence, status)) })
	}
}

func settleRepeatedLate(b *bench) {
	set := done(b.own(b.key("late"), "me", long))
	set.KeepOutcome = short
	b.settle(set)
	b.become(set.Key, once.Expired)
	b.must("Settle as done, repeated when its outcome has expired", b.store.Settle(b, set))
	if rec := b.wantStatus(set.Key, once.Expired); !sameOutcome(rec.Outcome, once.Outcome{}) {
		b.failf("a settlement repeated brought the outcome of %s back", show(rec))
	}
}

func settleRepeated(b *bench) {
	for _, status := range ends {
		set := done(b.own(b.key(status.String()), "me", long))
		set.Status = status
		b.settle(set)
		before := b.get(set.Key)
		for i := range b.stores {
			b.must(fmt.Sprintf("Settle as %v, repeated", status), b.spread(i).Settle(b, set))
			after := b.wantStatus(set.Key, status)
			if after.Attempt != before.Attempt || after.Owner != before.Owner || !sameOutcome(before.Outcome, after.Outcome) {
				b.failf("a settlement repeated made %s of %s", show(after), show(before))
			}
		}
	}
}

func settleNoSuchEnd(b *bench) {
	k := b.key("1")
	fence := b.own(k, "me", long)
	before := b.get(k)
	for _, status := range []once.Status{once.Running, once.Expired, -1, 99} {
		b.wantErr(fmt.Sprintf("Settle as %v", status), b.store.Settle(b, ending(fence, status)), once.ErrInvalid)
		b.unchanged("a settlement that makes no sense", before, b.get(k))
	}
}
