package storetest

import (
	"fmt"

	"github.com/effectively-once/once"
)

func speculativeRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"speculative/commit",
			"A Speculative transaction records what its body settled, even if Expected differs.",
			speculativeCommit[Tx]},
		{"speculative/silent",
			"A Speculative transaction whose body writes nothing still claims and settles.",
			speculativeSilent[Tx]},
		{"speculative/lost",
			"If the claim of a Speculative transaction is lost, its body has no effect and its error is ignored.",
			speculativeLost[Tx]},
		{"speculative/known",
			"If the key turns out to be free but known, the body of a Speculative transaction gets its record.",
			speculativeKnown[Tx]},
		{"speculative/fails",
			"If the body of a Speculative transaction fails, everything is rolled back, and its error is returned.",
			speculativeFails[Tx]},
		{"speculative/in-flight",
			"A Speculative transaction meets a transaction in flight like any other.",
			speculativeInFlight[Tx]},
		{"speculative/race",
			"Of several Speculative transactions at once, the rows of exactly one are committed.",
			speculativeRace[Tx]},
	}
}

// speculative returns a request with Speculative set, and with this outcome in
// Expected.
func (b *bench) speculative(k once.Key, who string, foreseen once.Outcome) once.ClaimRequest {
	expected := done(once.Fence{})
	expected.Outcome = foreseen
	r := b.request(k, who, long)
	r.Expected, r.Speculative = &expected, true
	return r
}

var foreseen = []once.Outcome{{}, done(once.Fence{}).Outcome, {Body: []byte("else"), ContentType: "text/plain", Sum: 5}}

func speculativeCommit[Tx any](b *txBench[Tx]) {
	for i, out := range foreseen {
		r, row := b.speculative(b.key(fmt.Sprint(i)), "me", out), fmt.Sprint("row ", i)
		rec := b.transact(r, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := b.completing(row, r.Owner)(tx, recs)
			if err == nil {
				if rows, counted := b.h.Count(b, b.name(row)); counted == nil && rows > 0 {
					b.failf("a row is there before its commit")
				}
			}
			return sets, err
		})
		if rec.Key != r.Key || rec.Owner != r.Owner || rec.Attempt != 1 {
			b.failf("a Speculative transaction returned %s of %+q", show(rec), rec.Key)
		}
		b.speculativeEnded(r, rec)
		b.wantEffects(row, 1)
	}
}

// speculativeEnded checks the record of a Speculative transaction, which is returned without its times.
func (b *bench) speculativeEnded(r once.ClaimRequest, rec once.Record) {
	got := b.wantStatus(r.Key, once.Done)
	if set := done(fenceOf(rec)); !sameOutcome(got.Outcome, set.Outcome) || string(got.Fingerprint) != string(r.Fingerprint) {
		b.failf("settled as %+v with the fingerprint %q, the record is %s", set.Outcome, r.Fingerprint, show(got))
	}
	if got.Created.IsZero() || got.Updated.Before(got.Created) {
		b.failf("the record of a Speculative transaction was created at %v and updated at %v", got.Created, got.Updated)
	}
	rec.Created = got.Created
	b.ended(got, rec, done(fenceOf(rec)))
}

func speculativeSilent[Tx any](b *txBench[Tx]) {
	for i, out := range foreseen {
		r := b.speculative(b.key(fmt.Sprint(i)), "me", out)
		silent := func(_ Tx, recs []once.Record) ([]once.Settlement, error) {
			return []once.Settlement{done(fenceOf(recs[0]))}, nil
		}
		rec := b.transact(r, silent)
		b.speculativeEnded(r, rec)
		before := b.get(r.Key)
		b.answered("a second Speculative transaction", before, b.transact(b.speculative(r.Key, "other", out), silent))
		b.unchanged("a second Speculative transaction", before, b.get(r.Key))
	}
}

func speculativeLost[Tx any](b *txBench[Tx]) {
	lies := map[string]func(error) error{
		"passes its error on":      func(err error) error { return err },
		"passes over its error":    func(error) error { return nil },
		"has an error of its own":  func(error) error { return &cause{"already paid"} },
		"takes it for a rejection": func(error) error { return once.ErrRejected },
	}
	for name, fence := range b.fencesByState("") {
		if name == "released" {
			continue
		}
		for how, lie := range lies {
			before := b.get(fence.Key)
			rec := b.transact(b.speculative(fence.Key, "rival", foreseen[len(how)%len(foreseen)]), func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
				return []once.Settlement{done(fenceOf(recs[0]))}, lie(b.effect(tx, "row"))
			})
			what := fmt.Sprintf("a Speculative transaction whose body %s, of a key that is %s", how, name)
			b.answered(what, before, rec)
			b.unchanged(what, before, b.get(fence.Key))
		}
	}
	b.wantEffects("row", 0)
}

func speculativeKnown[Tx any](b *txBench[Tx]) {
	for i, out := range foreseen {
		fence := b.own(b.key(fmt.Sprint(i)), "me", long)
		b.settle(ending(fence, once.Absent))
		r, row := b.speculative(fence.Key, "again", out), fmt.Sprint("row ", i)
		b.wantRunning(b.transact(r, b.completing(row, r.Owner)), r, 2)
		if rec := b.wantStatus(fence.Key, once.Done); rec.Attempt != 2 {
			b.failf("the second attempt ended as %s", show(rec))
		}
		b.wantEffects(row, 1)
	}
}

func speculativeFails[Tx any](b *txBench[Tx]) {
	for i, out := range foreseen {
		r := b.speculative(b.key(fmt.Sprint(i)), "me", out)
		no := &cause{"out of stock"}
		for _, writes := range []bool{true, false} {
			_, err := b.txStore.Transact(b, []once.ClaimRequest{r}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
				if writes {
					if err := b.effect(tx, "row"); err != nil {
						return nil, err
					}
				}
				return []once.Settlement{done(fenceOf(recs[0]))}, no
			})
			b.wantErr("a Speculative transaction whose body fails", err, no)
			b.leftNothing(r.Key, "row")
		}
	}
}

func speculativeInFlight[Tx any](b *txBench[Tx]) {
	if !b.h.SeesInFlight || b.h.Batched {
		return // it would wait for the transaction in flight, which waits for it here
	}
	for i, out := range foreseen {
		r, row := b.speculative(b.key(fmt.Sprint(i)), "me", out), fmt.Sprint("row ", i)
		f := b.takeOff(r, row)
		rival := b.speculative(r.Key, "rival", out)
		recs, err := b.txStores[1].Transact(b, []once.ClaimRequest{rival}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			return []once.Settlement{done(fenceOf(recs[0]))}, b.effect(tx, row)
		})
		b.must("a Speculative transaction that meets one in flight", err)
		b.meets("a Speculative transaction", rival, recs[0], err)
		b.must("the Transact in flight", f.land(nil))
		b.wantStatus(r.Key, once.Done)
		b.wantEffects(row, 1)
	}
}

func speculativeRace[Tx any](b *txBench[Tx]) {
	for n, out := range foreseen {
		k := b.key(fmt.Sprint(n))
		b.raceToComplete(k, fmt.Sprint("row ", n), func(owner string) once.ClaimRequest { return b.speculative(k, owner, out) })
	}
}
