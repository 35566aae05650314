package storetest

import (
	"github.com/effectively-once/once"
)

func callerTxRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"caller-tx/commit",
			"ClaimTx and SettleTx commit with the caller's transaction.",
			callerTxCommit[Tx]},
		{"caller-tx/several",
			"ClaimTx and SettleTx handle several like one, in their order.",
			callerTxSeveral[Tx]},
		{"caller-tx/rollback",
			"ClaimTx and SettleTx are rolled back with the caller's transaction.",
			callerTxRollback[Tx]},
		{"caller-tx/lost-claim",
			"After a lost claim the caller's transaction is still usable.",
			callerTxLostClaim[Tx]},
		{"caller-tx/own-claim",
			"A ClaimTx of a key that the caller already owns changes nothing and returns the record.",
			callerTxOwnClaim[Tx]},
		{"caller-tx/released",
			"A claim that is released before the caller commits leaves no stuck key, and the same transaction can claim the key again.",
			callerTxReleased[Tx]},
		{"caller-tx/settle-only",
			"SettleTx commits the end of an earlier claim together with rows.",
			callerTxSettleOnly[Tx]},
		{"caller-tx/stale",
			"A SettleTx whose fence is not current returns ErrLeaseLost.",
			callerTxStale[Tx]},
		{"caller-tx/repeated",
			"A SettleTx of a settlement that was already applied returns nil.",
			callerTxRepeated[Tx]},
	}
}

// completeTx claims, writes a row and settles in the caller's transaction.
func (b *txBench[Tx]) completeTx(tx Tx, r once.ClaimRequest, effect string) {
	rec := b.claimTx(tx, r)
	b.wantRunning(rec, r, 1)
	b.must("Effect", b.effect(tx, effect))
	b.must("SettleTx", b.txStore.SettleTx(b, tx, []once.Settlement{done(fenceOf(rec))}))
}

func callerTxCommit[Tx any](b *txBench[Tx]) {
	r := b.request(b.key("1"), "me", long)
	b.inTx(true, func(tx Tx) { b.completeTx(tx, r, "row") })
	rec := b.wantStatus(r.Key, once.Done)
	b.ended(rec, rec, done(fenceOf(rec)))
	b.wantEffects("row", 1)

	kept := b.request(b.key("2"), "me", long)
	b.inTx(true, func(tx Tx) { b.claimTx(tx, kept) })
	b.wantRunning(b.get(kept.Key), kept, 1)
}

func callerTxSeveral[Tx any](b *txBench[Tx]) {
	taken := b.own(b.key("taken"), "other", long)
	rs := []once.ClaimRequest{b.request(b.key("c"), "me", long), b.request(taken.Key, "me", long), b.request(b.key("a"), "me", long)}
	var recs []once.Record
	b.inTx(true, func(tx Tx) {
		var err error
		recs, err = b.txStore.ClaimTx(b, tx, rs)
		if b.must("ClaimTx", err); len(recs) != len(rs) {
			b.failf("ClaimTx of %d requests returned %d records", len(rs), len(recs))
		}
		b.must("SettleTx", b.txStore.SettleTx(b, tx, []once.Settlement{done(fenceOf(recs[0])), ending(fenceOf(recs[2]), once.Parked)}))
	})
	b.wantRunning(recs[0], rs[0], 1)
	b.wantRunning(recs[2], rs[2], 1)
	if recs[1].Key != taken.Key || recs[1].Owner != taken.Owner {
		b.failf("the second of three claims, which is lost, returned %s of %+q", show(recs[1]), recs[1].Key)
	}
	b.wantStatus(rs[0].Key, once.Done)
	b.wantStatus(rs[1].Key, once.Running)
	b.wantStatus(rs[2].Key, once.Parked)
}

func callerTxRollback[Tx any](b *txBench[Tx]) {
	r := b.request(b.key("1"), "me", long)
	b.inTx(false, func(tx Tx) { b.completeTx(tx, r, "row") })
	b.leftNothing(r.Key, "row")
	b.inTx(false, func(tx Tx) { b.claimTx(tx, r) })
	b.leftNothing(r.Key, "row")
	b.inTx(true, func(tx Tx) { b.completeTx(tx, r, "row") })
	b.wantEffects("row", 1)
}

func callerTxLostClaim[Tx any](b *txBench[Tx]) {
	for name, fence := range b.fencesByState("") {
		if name == "released" {
			continue
		}
		before := b.get(fence.Key)
		var met, other once.Record
		r := b.request(b.key("beside "+name), "rival", long)
		b.inTx(true, func(tx Tx) {
			met = b.claimTx(tx, b.request(fence.Key, "rival", long))
			other = b.claimTx(tx, r)
			b.must("SettleTx after a lost claim", b.txStore.SettleTx(b, tx, []once.Settlement{done(fenceOf(other))}))
			b.must("Effect after a lost claim", b.effect(tx, name))
		})
		b.answered("a ClaimTx of a key that is "+name, before, met)
		b.unchanged("a ClaimTx of a key that is "+name, before, b.get(fence.Key))
		b.wantRunning(other, r, 1)
		b.wantStatus(r.Key, once.Done)
		b.wantEffects(name, 1)
	}
}

func callerTxOwnClaim[Tx any](b *txBench[Tx]) {
	r := b.request(b.key("1"), "me", long)
	b.inTx(true, func(tx Tx) {
		first := b.claimTx(tx, r)
		b.answered("an own claim repeated", first, b.claimTx(tx, r))
		b.answered("a rival claim in the same transaction", first, b.claimTx(tx, b.request(r.Key, "rival", long)))
	})
	b.wantRunning(b.get(r.Key), r, 1)
	b.inTx(true, func(tx Tx) { b.wantRunning(b.claimTx(tx, r), r, 1) })
}

func callerTxReleased[Tx any](b *txBench[Tx]) {
	k := b.key("1")
	b.inTx(true, func(tx Tx) {
		rec := b.claimTx(tx, b.request(k, "me", long))
		b.must("SettleTx", b.txStore.SettleTx(b, tx, []once.Settlement{ending(fenceOf(rec), once.Absent)}))
	})
	b.wantStatus(k, once.Absent)
	b.own(k, "other", long)

	r := b.request(b.key("2"), "other", long)
	b.inTx(true, func(tx Tx) {
		rec := b.claimTx(tx, b.request(r.Key, "me", long))
		b.must("SettleTx", b.txStore.SettleTx(b, tx, []once.Settlement{ending(fenceOf(rec), once.Absent)}))
		b.wantRunning(b.claimTx(tx, r), r, 2)
	})
	b.wantRunning(b.get(r.Key), r, 2)
}

func callerTxSettleOnly[Tx any](b *txBench[Tx]) {
	fence := b.own(b.key("1"), "me", long)
	before := b.get(fence.Key)
	settle := func(tx Tx) {
		b.must("Effect", b.effect(tx, "row"))
		b.must("SettleTx", b.txStore.SettleTx(b, tx, []once.Settlement{done(fence)}))
	}
	b.inTx(false, settle)
	b.unchanged("a rollback", before, b.get(fence.Key))
	b.wantEffects("row", 0)
	b.inTx(true, settle)
	b.ended(b.wantStatus(fence.Key, once.Done), before, done(fence))
	b.wantEffects("row", 1)
}

func callerTxStale[Tx any](b *txBench[Tx]) {
	for name, current := range b.fencesByState("") {
		before := b.get(current.Key)
		for wrong, fence := range b.stale(current) {
			b.inTx(false, func(tx Tx) {
				b.must("Effect", b.effect(tx, "row"))
				err := b.txStore.SettleTx(b, tx, []once.Settlement{done(fence)})
				b.wantErr("SettleTx of a key that is "+name+" with "+wrong, err, once.ErrLeaseLost)
			})
		}
		b.unchanged("a SettleTx that was refused", before, b.get(current.Key))
	}
	b.wantEffects("row", 0)
}

func callerTxRepeated[Tx any](b *txBench[Tx]) {
	fence := b.own(b.key("1"), "me", long)
	b.settle(done(fence))
	before := b.get(fence.Key)
	b.inTx(true, func(tx Tx) {
		b.must("SettleTx, repeated", b.txStore.SettleTx(b, tx, []once.Settlement{done(fence)}))
		b.must("Effect", b.effect(tx, "row"))
	})
	b.unchanged("a settlement repeated", before, b.get(fence.Key))
	b.wantEffects("row", 1)
}
