package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
)

func flightRules[Tx any](batched bool) []txRule[Tx] {
	if batched {
		return []txRule[Tx]{
			{"flight/overtaken",
				"A transaction that is one request is refused with ErrConflict if its key was claimed meanwhile, and writes nothing.",
				flightOvertaken[Tx]},
		}
	}
	return []txRule[Tx]{
		{"flight/commits",
			"A claim that meets a transaction in flight waits, or returns Running with LeaseLeft 0. After the commit it returns the outcome.",
			flightCommits[Tx]},
		{"flight/rolls-back",
			"After a transaction in flight is rolled back, its key is free.",
			flightRollsBack[Tx]},
		{"flight/another-key",
			"A transaction in flight does not block claims of other keys.",
			flightAnotherKey[Tx]},
	}
}

func flightCommits[Tx any](b *txBench[Tx]) {
	for way, claim := range b.ways() {
		first, rival := b.request(b.key(way), "first", long), b.request(b.key(way), "rival", long)
		f := b.takeOff(first, way)
		b.rivalInFlight(way, rival, claim)
		b.must("the Transact in flight", f.land(nil))
		rival.Wait = slowest
		rec, err := claim(b, rival)
		if b.must(way+" after the commit", err); rec.Status != once.Done || rec.Owner != first.Owner {
			b.failf("%s after the commit returned %s", way, show(rec))
		}
		b.wantEffects(way, 1)
	}
}

func flightOvertaken[Tx any](b *txBench[Tx]) {
	for way, claim := range map[string]func(once.ClaimRequest) (once.Record, error){
		"Claim": func(r once.ClaimRequest) (once.Record, error) { return b.stores[1].Claim(b, r) },
		"Transact": func(r once.ClaimRequest) (once.Record, error) {
			recs, err := b.txStores[1].Transact(b, []once.ClaimRequest{r}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
				return []once.Settlement{done(fenceOf(recs[0]))}, b.effect(tx, "rival")
			})
			if err != nil || len(recs) != 1 {
				return once.Record{}, fmt.Errorf("%d records, %w", len(recs), err)
			}
			return recs[0], nil
		},
	} {
		first, rival := b.request(b.key(way), "first", long), b.request(b.key(way), "rival", long)
		f := b.takeOff(first, way)
		rec, err := claim(rival)
		if b.must(way, err); b.h.ClaimsFirst {
			b.wantRunning(rec, first, 1)
			b.must("the Transact in flight", f.land(nil))
			b.wantEffects(way, 1)
			continue
		}
		b.wantRunning(rec, rival, 1)
		b.wantErr("the Transact in flight", f.land(nil), once.ErrConflict)
		if rec := b.get(first.Key); rec.Owner != rival.Owner {
			b.failf("after %s, the record is %s", way, show(rec))
		}
		b.wantEffects(way, 0)
	}
}

// rivalInFlight makes a claim while a transaction on the key is in flight.
func (b *txBench[Tx]) rivalInFlight(way string, r once.ClaimRequest, claim func(context.Context, once.ClaimRequest) (once.Record, error)) {
	ctx, cancel := context.WithTimeout(b, inFlightWait)
	defer cancel()
	rec, err := claim(ctx, r)
	b.meets(way, r, rec, err)
}

func flightRollsBack[Tx any](b *txBench[Tx]) {
	ways := b.ways()
	delete(ways, "Transact") // it would run now, and has its own case
	no := &cause{"rolled back"}
	for way, claim := range ways {
		first, rival := b.request(b.key(way), "first", long), b.request(b.key(way), "rival", long)
		f := b.takeOff(first, way)
		b.rivalInFlight(way, rival, claim)
		if err := f.land(no); !errors.Is(err, no) {
			b.failf("the error of the body was returned as %v", err)
		}
		rival.Wait = slowest
		rec, err := claim(b, rival)
		b.must(way+" after the rollback", err)
		b.wantRunning(rec, rival, 1)
		b.wantEffects(way, 0)
	}
}

func flightAnotherKey[Tx any](b *txBench[Tx]) {
	if !b.h.SeesInFlight {
		return // some databases have one writer at a time
	}
	f := b.takeOff(b.request(b.key("1"), "first", long), "first")
	r := b.request(b.key("2"), "second", long)
	r.Wait = slowest
	recs, err := b.txStores[1].Transact(b, []once.ClaimRequest{r}, b.completing("second", r.Owner))
	if b.must("Transact of another key", err); len(recs) != 1 {
		b.failf("Transact of one request returned %d records", len(recs))
	}
	b.wantRunning(recs[0], r, 1)
	b.wantEffects("second", 1)
	b.wantEffects("first", 0)
	b.must("the Transact in flight", f.land(nil))
	b.wantEffects("first", 1)
}
