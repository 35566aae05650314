package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/effectively-once/once"
)

func raceRules() []rule {
	return []rule{
		{"race/claim",
			"Of several claims at once, from several processes, exactly one takes the key.",
			raceClaim},
		{"race/takeover",
			"Of several takeovers at once, one succeeds, and Attempt rises by one.",
			raceTakeover},
		{"race/reclaim",
			"Of several claims at once of a released key, one takes it.",
			raceReclaim},
		{"race/anew", "Of several claims at once of a forgotten key, one takes it.", raceAnew},
		{"race/attempts", "While a key is known, no attempt number is used twice.", raceAttempts},
		{"race/settle",
			"Of several different settlements of one claim at once, one is applied.",
			raceSettle},
		{"race/late",
			"Of a late completion and a takeover at once, one succeeds, and the other learns of it.",
			raceLate},
	}
}

const rivals = 64

func raceClaim(b *bench) {
	b.oneOwner(b.key("1"), 0, 1)
}

func raceTakeover(b *bench) {
	fence := b.lapse(b.key("1"), "old")
	b.oneOwner(fence.Key, fence.Attempt, fence.Attempt+1)
}

func raceReclaim(b *bench) {
	fence := b.own(b.key("1"), "old", long)
	b.settle(ending(fence, once.Absent))
	b.oneOwner(fence.Key, 0, fence.Attempt+1)
}

func raceAnew(b *bench) {
	k := b.doneFor("1", short, 2*short)
	b.vanish(k)
	b.oneOwner(k, 0, 1)
}

// oneOwner makes many claims at once.
func (b *bench) oneOwner(k once.Key, take, want int64) {
	recs := make([]once.Record, rivals)
	b.together(rivals, func(i int) {
		r := b.request(k, fmt.Sprint(i), long)
		r.Attempt = take
		b.persist("Claim", func() (err error) {
			recs[i], err = b.spread(i).Claim(b, r)
			return err
		})
	})
	owner := b.wantStatus(k, once.Running)
	if owner.Attempt != want {
		b.failf("%d claims at once made attempt %d of what must be attempt %d", rivals, owner.Attempt, want)
	}
	winners := 0
	for i, rec := range recs {
		if rec.Status == once.Running && rec.Owner == b.token(fmt.Sprint(i)) {
			winners++
		}
		seenInFlight := rec.Owner == [16]byte{} && rec.LeaseLeft == 0
		if rec.Status != once.Running || !seenInFlight && (rec.Owner != owner.Owner || rec.Attempt != want) {
			b.failf("%d claims at once made %s the owner, and one of them was told %s", rivals, show(owner), show(rec))
		}
	}
	if winners != 1 {
		b.failf("%d of %d claims at once were told that the key is theirs", winners, rivals)
	}
}

func raceAttempts(b *bench) {
	const workers, claims = 8, 6
	k := b.key("1")
	var mu sync.Mutex
	given := make(map[int64]int)
	b.together(workers, func(i int) {
		for n := range claims {
			r := b.request(k, fmt.Sprint(i, n), long)
			r.Wait = slowest
			b.until("a key that is released again and again is free", func() bool {
				rec, err := b.spread(i).Claim(b, r)
				return err == nil && rec.Owner == r.Owner
			})
			rec, err := b.spread(i).Claim(b, r)
			if err != nil || rec.Owner != r.Owner {
				b.failf("a claim that was won is gone: %s, %v", show(rec), err)
			}
			mu.Lock()
			given[rec.Attempt]++
			mu.Unlock()
			b.persist("Settle", func() error { return b.spread(i).Settle(b, ending(fenceOf(rec), once.Absent)) })
		}
	})
	for attempt := range int64(workers * claims) {
		if n := given[attempt+1]; n != 1 {
			b.failf("attempt %d was used %d times, of all attempts %v", attempt+1, n, given)
		}
	}
}

func raceSettle(b *bench) {
	fence := b.own(b.key("1"), "me", long)
	applied := make([]bool, rivals/4)
	sets := make([]once.Settlement, len(applied))
	b.together(len(applied), func(i int) {
		sets[i] = done(fence)
		sets[i].Outcome.Body = []byte(fmt.Sprint("answer ", i))
		b.persist("Settle", func() error {
			err := b.spread(i).Settle(b, sets[i])
			applied[i] = err == nil
			if errors.Is(err, once.ErrLeaseLost) {
				return nil
			}
			return err
		})
	})
	rec, winners := b.wantStatus(fence.Key, once.Done), 0
	for i, ok := range applied {
		if ok {
			winners++
			if !sameOutcome(rec.Outcome, sets[i].Outcome) {
				b.failf("the settlement as %q was applied, and the record is %s", sets[i].Outcome.Body, show(rec))
			}
		}
	}
	if winners != 1 {
		b.failf("%d of %d different settlements at once were applied", winners, len(applied))
	}
}

func raceLate(b *bench) {
	for i := range 16 {
		fence := b.own(b.key(fmt.Sprint(i)), "old", long)
		b.settle(ending(fence, once.Unknown))
		var late error
		var taken once.Record
		b.together(2, func(who int) {
			if who == i%2 {
				b.persist("Settle", func() error {
					if late = b.spread(1).Settle(b, done(fence)); errors.Is(late, once.ErrLeaseLost) {
						return nil
					}
					return late
				})
				return
			}
			r := b.request(fence.Key, "new", long)
			r.Attempt = fence.Attempt
			b.persist("Claim", func() (err error) {
				taken, err = b.spread(2).Claim(b, r)
				return err
			})
		})
		took := taken.Status == once.Running && taken.Owner == b.token("new")
		if took == (late == nil) {
			b.failf("a late completion (%v) and a takeover (%s) had the same result", late, show(taken))
		}
		rec := b.get(fence.Key)
		if took && rec.Status != once.Running || !took && rec.Status != once.Done {
			b.failf("taken over: %v; completed: %v; and the record is %s", took, late == nil, show(rec))
		}
	}
}
