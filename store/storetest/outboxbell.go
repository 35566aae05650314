package storetest

import (
	"context"
	"errors"
	"slices"

	"github.com/effectively-once/once/store"
)

func outboxBellRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/rings",
			"Wait returns if messages were committed since HearOutbox, or since the last Wait began.",
			outboxRings[Tx]},
		{"outbox/waits",
			"Wait returns when its context ends. The next Wait returns at once if messages were committed meanwhile.",
			outboxWaits[Tx]},
	}
}

func (b *txBench[Tx]) hear(i int) store.Ear {
	e, err := capability[store.Bell](b.bench, b.txSpread(i)).HearOutbox(b)
	b.must("HearOutbox", err)
	return e
}

// ringer returns a store whose messages an ear hears: another one than the
// ear's if the ear is far.
func ringer(e store.Ear, own int) int {
	if e.Far() {
		return own + 1
	}
	return own
}

func (b *txBench[Tx]) putIn(i int, ms ...store.Outgoing) {
	b.inTx(true, func(tx Tx) { b.must("PutTx", b.outbox(i).PutTx(b, tx, ms)) })
}

// wantRing checks that Wait returns nil for a message. The message is there
// then, or soon, because Wait may return early.
func (b *txBench[Tx]) wantRing(after string, e store.Ear, id string) {
	heard := false
	b.until("Wait returns after "+after, func() bool {
		ctx, cancel := context.WithTimeout(b, b.patience/10)
		defer cancel()
		switch err := e.Wait(ctx); {
		case err == nil:
			heard = true
		case !errors.Is(err, context.DeadlineExceeded):
			b.failf("after %s Wait returned %v", after, err)
		}
		return heard && slices.Contains(outgoingIDs(b.outgoing(store.OutgoingQuery{})), id)
	})
}

// quiet waits until no ring is left.
func (b *txBench[Tx]) quiet(e store.Ear) {
	for {
		ctx, cancel := context.WithTimeout(b, 2*short)
		err := e.Wait(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		b.must("Wait", err)
	}
}

func outboxRings[Tx any](b *txBench[Tx]) {
	e, other := b.hear(0), b.hear(0)
	defer e.Close()
	put := ringer(e, 0)
	b.putIn(put, b.out("1", "k"))
	b.wantRing("a commit before it", e, "1")
	b.quiet(e)
	b.together(2, func(i int) {
		if i == 0 {
			b.wantRing("a commit while it waits", e, "2")
		} else {
			b.putIn(put, b.out("2", "k"))
		}
	})
	b.quiet(e)
	b.inTx(false, func(tx Tx) { b.must("PutTx", b.outbox(put).PutTx(b, tx, []store.Outgoing{b.out("no", "k")})) })
	b.inTx(true, func(tx Tx) {
		b.must("PutTx", b.outbox(put).PutTx(b, tx, []store.Outgoing{b.out("3", "k"), b.out("4", "")}))
		b.must("Effect", b.effect(tx, "row"))
	})
	b.wantRing("a rollback and a commit", e, "3")
	b.wantRing("all this", other, "3")
	other.Close()
	b.quiet(e)
	b.putIn(put, b.out("5", "k"))
	b.wantRing("a commit that another ear does not hear any more", e, "5")
}

func outboxWaits[Tx any](b *txBench[Tx]) {
	e := b.hear(2)
	defer e.Close()
	put := ringer(e, 2)
	for _, id := range []string{"1", "2", "3"} {
		b.quiet(e)
		b.putIn(put, b.out(id, "k"))
		ended, cancel := context.WithCancel(b)
		cancel()
		err := e.Wait(ended)
		if err != nil && !errors.Is(err, context.Canceled) {
			b.failf("Wait whose context has ended returned %v", err)
		}
		if err != nil {
			b.wantRing("a commit, and a Wait whose context had ended", e, id)
		}
	}
}
