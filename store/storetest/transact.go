package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/effectively-once/once"
)

func transactRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"transact/commit",
			"Transact claims, calls body, settles and commits. It returns the records as claimed.",
			transactCommit[Tx]},
		{"transact/together",
			"The record commits together with the rows of its work: nobody sees one without the other.",
			transactTogether[Tx]},
		{"transact/fails",
			"If body fails, everything is rolled back, and its error is returned.",
			transactFails[Tx]},
		{"transact/panics",
			"If body panics, everything is rolled back, and the panic continues.",
			transactPanics[Tx]},
		{"transact/rolls-back-to",
			"A rollback leaves an earlier record unchanged.",
			transactRollsBackTo[Tx]},
		{"transact/lost-claim",
			"If no claim is won, body is not called, and the records are returned.",
			transactLostClaim[Tx]},
		{"transact/own-claim",
			"A claim of a key that the caller already owns is won.",
			transactOwnClaim[Tx]},
		{"transact/takeover",
			"A transaction takes over an unknown attempt that its request names.",
			transactTakeover[Tx]},
		{"transact/several",
			"Several claims keep their order, and each has its own result.",
			transactSeveral[Tx]},
		{"transact/causes",
			"Each of several claims of new keys has its own cause, or none.",
			transactCauses[Tx]},
		{"transact/stale-settlement",
			"A settlement that does not change its own row rolls everything back with ErrLeaseLost.",
			transactStale[Tx]},
		{"transact/exact", "The outcome and the fingerprint are kept exactly.", transactExact[Tx]},
		{"transact/context-ends",
			"The end of the context does not end the transaction.",
			transactContextEnds[Tx]},
		{"transact/context-ended",
			"A Transact whose context has ended fails and changes nothing.",
			transactContextEnded[Tx]},
		{"transact/race",
			"Of several transactions at once, the rows of exactly one are committed.",
			transactRace[Tx]},
	}
}

func transactCommit[Tx any](b *txBench[Tx]) {
	r := b.request(b.key("1"), "me", long)
	var inside once.Record
	rec := b.transact(r, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
		if len(recs) != 1 {
			return nil, fmt.Errorf("the body of a Transact of one request got %d records", len(recs))
		}
		inside = recs[0]
		return b.completing("row", r.Owner)(tx, recs)
	})
	b.wantRunning(inside, r, 1)
	b.wantRunning(rec, r, 1)
	b.ended(b.wantStatus(r.Key, once.Done), rec, done(fenceOf(rec)))
	b.wantEffects("row", 1)
}

func transactTogether[Tx any](b *txBench[Tx]) {
	for i := range 8 {
		r := b.request(b.key(fmt.Sprint(i)), "me", long)
		var committed atomic.Bool
		b.together(2, func(who int) {
			if who == 0 {
				defer committed.Store(true)
				b.transact(r, b.completing(fmt.Sprint(i), r.Owner))
				return
			}
			for last := false; !last; {
				last = committed.Load()
				rec, err := b.stores[1].Get(b, r.Key)
				b.must("Get", err)
				rows, err := b.h.Count(b, b.name(fmt.Sprint(i)))
				b.must("Count", err)
				if rec.Status == once.Done && rows == 0 {
					b.failf("the record is done before its rows are there")
				}
				if rows > 0 {
					b.wantStatus(r.Key, once.Done)
				}
			}
		})
	}
}

// cause is an error of a body, which is found by its type.
type cause struct{ text string }

func (c *cause) Error() string { return c.text }

func transactFails[Tx any](b *txBench[Tx]) {
	k := b.key("1")
	_, err := b.txStore.Transact(b, []once.ClaimRequest{b.request(k, "me", long)}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
		if err := b.effect(tx, "row"); err != nil {
			return nil, err
		}
		return []once.Settlement{done(fenceOf(recs[0]))}, fmt.Errorf("out of stock: %w", &cause{"shelf 7"})
	})
	var c *cause
	if !errors.As(err, &c) || c.text != "shelf 7" {
		b.failf("the error of the body was returned as %v", err)
	}
	b.leftNothing(k, "row")
	b.transact(b.request(k, "other", long), b.completing("row", b.token("other")))
	b.wantEffects("row", 1)
}

func (b *txBench[Tx]) leftNothing(k once.Key, effect string) {
	if rec := b.get(k); !isZero(rec) && !(b.h.ClaimsFirst && rec.Status == once.Absent) {
		b.failf("a transaction that was rolled back left %s", show(rec))
	}
	b.wantEffects(effect, 0)
}

func transactPanics[Tx any](b *txBench[Tx]) {
	k := b.key("1")
	recovered, err := b.panicInBody(k)
	for tries := 1; tries < 10 && recovered == nil && errors.Is(err, once.ErrConflict); tries++ { // conflicts with another case
		recovered, err = b.panicInBody(k)
	}
	if recovered != "boom" {
		b.failf("the panic of the body continued as %v, with the error %v", recovered, err)
	}
	b.leftNothing(k, "row")
	b.transact(b.request(k, "other", long), b.completing("row", b.token("other")))
}

func (b *txBench[Tx]) panicInBody(k once.Key) (recovered any, err error) {
	defer func() { recovered = recover() }()
	_, err = b.txStore.Transact(b, []once.ClaimRequest{b.request(k, "me", long)}, func(tx Tx, _ []once.Record) ([]once.Settlement, error) {
		if err := b.effect(tx, "row"); err != nil {
			return nil, err
		}
		panic("boom")
	})
	return nil, err
}

func transactRollsBackTo[Tx any](b *txBench[Tx]) {
	released := b.own(b.key("released"), "before", long)
	b.settle(ending(released, once.Absent))
	unknown := b.own(b.key("unknown"), "before", long)
	b.settle(ending(unknown, once.Unknown))
	for _, fence := range []once.Fence{released, unknown} {
		before := b.get(fence.Key)
		r := b.request(fence.Key, "me", long)
		r.Attempt = fence.Attempt
		var inside once.Record
		_, err := b.txStore.Transact(b, []once.ClaimRequest{r}, func(_ Tx, recs []once.Record) ([]once.Settlement, error) {
			inside = recs[0]
			return nil, &cause{"no"}
		})
		if c := (*cause)(nil); !errors.As(err, &c) {
			b.failf("the error of the body was returned as %v", err)
		}
		b.wantRunning(inside, r, 2)
		b.unchanged("a rollback", before, b.get(fence.Key))
	}
}

func transactLostClaim[Tx any](b *txBench[Tx]) {
	for name, fence := range b.fencesByState("") {
		if name == "released" {
			continue
		}
		before := b.get(fence.Key)
		recs, err := b.txStore.Transact(b, []once.ClaimRequest{b.request(fence.Key, "rival", long)}, b.neverRuns)
		if b.must("Transact of a key that is "+name, err); len(recs) != 1 {
			b.failf("Transact of one request returned %d records", len(recs))
		}
		b.answered("a Transact of a key that is "+name, before, recs[0])
		b.unchanged("a Transact of a key that is "+name, before, b.get(fence.Key))
	}
}

func transactOwnClaim[Tx any](b *txBench[Tx]) {
	r := b.request(b.key("1"), "me", long)
	b.claim(r)
	b.wantRunning(b.transact(r, b.completing("row", r.Owner)), r, 1)
	b.wantStatus(r.Key, once.Done)
	b.wantEffects("row", 1)
}

func transactTakeover[Tx any](b *txBench[Tx]) {
	fence := b.lapse(b.key("1"), "old")
	r := b.request(fence.Key, "new", long)
	r.Attempt = fence.Attempt
	b.wantRunning(b.transact(r, b.completing("row", r.Owner)), r, 2)
	b.wantStatus(r.Key, once.Done)
	b.refused("Settle of the former holder", r.Key, func() error { return b.store.Settle(b, ending(fence, once.Parked)) })
	b.wantEffects("row", 1)
}

func transactSeveral[Tx any](b *txBench[Tx]) {
	fences := b.fencesByState("")
	names := []string{"done", "free 1", "running", "lapsed", "parked", "free 2", "expired", "free 3"}
	mine := map[string]once.Status{"free 1": once.Done, "lapsed": once.Parked, "free 2": once.Absent, "free 3": once.Unknown}
	before, rs := make(map[string]once.Record), make([]once.ClaimRequest, len(names))
	for i, name := range names {
		rs[i] = b.request(b.key(name), "me too", long)
		rs[i].Attempt = fences[name].Attempt
		before[name] = b.get(rs[i].Key)
	}
	recs, err := b.txStore.Transact(b, rs, func(tx Tx, recs []once.Record) (sets []once.Settlement, err error) {
		for i, rec := range recs {
			status, ok := mine[names[i]]
			if ours := rec.Status == once.Running && rec.Owner == rs[i].Owner; ours != ok || rec.Key != rs[i].Key {
				return nil, fmt.Errorf("the claim of a key that is %s returned %s of %+q", names[i], show(rec), rec.Key)
			}
			if ok {
				sets = append(sets, ending(fenceOf(rec), status))
			}
		}
		return sets, b.effect(tx, "row")
	})
	if b.must("Transact", err); len(recs) != len(names) {
		b.failf("Transact of %d requests returned %d records", len(names), len(recs))
	}
	for i, name := range names {
		if status, ok := mine[name]; ok {
			b.ended(b.wantStatus(rs[i].Key, status), recs[i], ending(fenceOf(recs[i]), status))
			continue
		}
		b.answered("a Transact that lost this claim", before[name], recs[i])
		b.unchanged("a Transact that lost this claim", before[name], b.get(rs[i].Key))
	}
	b.wantEffects("row", 1)
}

func transactCauses[Tx any](b *txBench[Tx]) {
	var rs []once.ClaimRequest
	for i, cause := range [][16]byte{{}, causeOf("one"), {}, causeOf("other")} {
		r := b.request(b.key(fmt.Sprint(i)), "me", long)
		r.Cause = cause
		rs = append(rs, r)
	}
	recs, err := b.txStore.Transact(b, rs, func(_ Tx, recs []once.Record) (sets []once.Settlement, err error) {
		for _, rec := range recs {
			sets = append(sets, done(fenceOf(rec)))
		}
		return sets, nil
	})
	b.must("Transact", err)
	for i, r := range rs {
		if is := b.get(r.Key); recs[i].Cause != r.Cause || is.Cause != r.Cause {
			b.failf("claimed with the cause %x, the record was returned with %x and is kept with %x", r.Cause, recs[i].Cause, is.Cause)
		}
	}
}

func transactStale[Tx any](b *txBench[Tx]) {
	settled := b.own(b.key("done"), "me", long)
	b.settle(done(settled))
	wrong := map[string]once.Settlement{
		"a settlement that was applied before":   done(settled),
		"the fence of a key that is done":        ending(settled, once.Parked),
		"the fence of a key that was never seen": done(once.Fence{Key: b.key("never"), Owner: b.token("me"), Attempt: 1}),
	}
	try := func(name string, k once.Key, set once.Settlement) {
		r := b.request(k, "me", long)
		_, err := b.txStore.Transact(b, []once.ClaimRequest{r}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			if err := b.effect(tx, "row"); err != nil {
				return nil, err
			}
			return []once.Settlement{set, done(fenceOf(recs[0]))}, nil
		})
		b.wantErr("Transact that settles with "+name, err, once.ErrLeaseLost)
		b.leftNothing(r.Key, "row")
	}
	for name, set := range wrong {
		try(name, b.key("1"), set)
	}
	for name := range b.stale(once.Fence{Key: b.key("1")}) {
		k := b.key(name) // of its own, whose first attempt it is
		try(name, k, ending(b.stale(once.Fence{Key: k, Owner: b.token("me"), Attempt: 1})[name], once.Parked))
	}
	r := b.request(b.key("1"), "me", long)
	b.transact(r, b.completing("row", r.Owner))
}

func transactExact[Tx any](b *txBench[Tx]) {
	for i, out := range []once.Outcome{
		{},
		{Body: []byte{}, ContentType: "text/plain", Sum: 1},
		{Body: []byte("\x00\xff\x00"), ContentType: "image/png", Sum: 0xffffffff},
		{Rejected: true, Body: []byte("no")},
		{Omitted: true},
	} {
		r := b.request(b.key(fmt.Sprint(i)), "me", long)
		r.Fingerprint = []byte{0, 0xff, byte(i)}
		b.transact(r, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			set := ending(fenceOf(recs[0]), once.Done)
			set.Outcome = out
			return []once.Settlement{set}, nil
		})
		rec := b.wantStatus(r.Key, once.Done)
		if !sameOutcome(rec.Outcome, out) || string(rec.Fingerprint) != string(r.Fingerprint) {
			b.failf("settled as %+v with the fingerprint %q, the record is %s", out, r.Fingerprint, show(rec))
		}
	}
}

func transactContextEnds[Tx any](b *txBench[Tx]) {
	ctx, cancel := context.WithCancel(b)
	defer cancel()
	r := b.request(b.key("1"), "me", long)
	_, err := b.txStore.Transact(ctx, []once.ClaimRequest{r}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
		cancel()
		return b.completing("row", r.Owner)(tx, recs)
	})
	b.must("Transact whose context ended while its body ran", err)
	b.wantStatus(r.Key, once.Done)
	b.wantEffects("row", 1)
}

func transactContextEnded[Tx any](b *txBench[Tx]) {
	ctx, cancel := context.WithCancel(b)
	cancel()
	k := b.key("1")
	_, err := b.txStore.Transact(ctx, []once.ClaimRequest{b.request(k, "me", long)}, b.neverRuns)
	if err == nil || errors.Is(err, errRan) {
		b.failf("Transact with a context that had ended returned %v", err)
	}
	b.leftNothing(k, "row")
}

func transactRace[Tx any](b *txBench[Tx]) {
	b.raceToComplete(b.key("1"), "row", func(owner string) once.ClaimRequest { return b.request(b.key("1"), owner, long) })
}

// raceToComplete runs transactions of many owners at once. One of them wins the
// key, and makes the only effect.
func (b *txBench[Tx]) raceToComplete(k once.Key, row string, request func(owner string) once.ClaimRequest) {
	var winners atomic.Int64
	b.together(rivals, func(i int) {
		r := request(fmt.Sprint(i))
		var rec once.Record
		b.until("one of many transactions is done", func() bool {
			recs, err := b.txSpread(i).Transact(b, []once.ClaimRequest{r}, b.completing(row, r.Owner))
			if err != nil || len(recs) != 1 { // a database may give up on some of them, and they are repeated
				return false
			}
			rec = recs[0]
			return rec.Owner == r.Owner || rec.Status == once.Done
		})
		if rec.Owner == r.Owner {
			winners.Add(1)
		}
	})
	if n := winners.Load(); n != 1 {
		b.failf("%d transactions of %d at once won the key", n, rivals)
	}
	b.wantStatus(k, once.Done)
	b.wantEffects(row, 1)
}
