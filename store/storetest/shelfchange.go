package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// shelfBlockedFresh looks twice in one transaction. Some databases block all
// writes in between.
func shelfBlockedFresh[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	look := func(ctx context.Context, tx Tx) ([]string, error) {
		return b.txShelf(0).BlockedTx(ctx, tx, c, []string{"k"}, true)
	}
	b.inTx(false, func(tx Tx) {
		if got, err := look(b, tx); err != nil || len(got) > 0 {
			b.failf("BlockedTx with nothing on the shelf returned %q, %v", got, err)
		}
		if b.shelveBeside(aside(c, "1", "k")) != nil {
			return
		}
		if got, err := look(b, tx); err != nil || len(got) != 1 {
			b.failf("after another transaction has committed, BlockedTx returned %q, %v", got, err)
		}
	})
	m := aside(b.consumer("b"), "1", "in flight")
	b.inTx(false, func(tx Tx) {
		b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{m}))
		b.wantShelved("ShelveTx in a transaction in flight", store.ShelfQuery{Consumer: m.Consumer})
		ctx, cancel := context.WithTimeout(b, inFlightWait)
		defer cancel()
		other, err := b.h.Begin(ctx)
		if err != nil {
			return
		}
		defer func() { _ = b.h.Rollback(context.WithoutCancel(b), other) }() // it may already be broken
		if got, err := b.txShelf(1).BlockedTx(ctx, other, m.Consumer, []string{"in flight"}, true); err == nil && len(got) > 0 {
			b.failf("BlockedTx saw what another transaction had not committed: %q", got)
		}
	})
}

// shelveBeside sets a message aside within a short time, or fails.
func (b *txBench[Tx]) shelveBeside(m store.Shelved) error {
	ctx, cancel := context.WithTimeout(b, inFlightWait)
	defer cancel()
	tx, err := b.h.Begin(ctx)
	if err != nil {
		return err
	}
	if err := b.txShelf(1).ShelveTx(ctx, tx, []store.Shelved{m}); err != nil {
		_ = b.h.Rollback(context.WithoutCancel(b), tx) // it may already be broken
		return err
	}
	return b.h.Commit(b, tx)
}

// shelfChangeMany checks nothing of a shelf that is no store.ShelfBatch.
func shelfChangeMany[Tx any](b *txBench[Tx]) {
	many, ok := once.As[store.ShelfBatch](b.txSpread(0))
	if !ok {
		return
	}
	c := b.consumer("a")
	b.shelve(aside(c, "1", "k"), aside(c, "2", "k"), aside(c, "3", ""), aside(c, "4", ""))
	ms := b.shelved(store.ShelfQuery{Consumer: c})
	b.must("Change", b.shelf(1).Change(b, ms[1]))
	change := append(ms[:0:0], ms...)
	for i := range change {
		change[i].Reason, change[i].Attempts = "many", 7
	}
	change[2].State = store.Handled
	changed, err := many.ChangeMany(b, change)
	if err != nil || fmt.Sprint(changed) != "[true false true true]" {
		b.failf("ChangeMany of four messages, of which the second has changed, returned %v, %v", changed, err)
	}
	b.wantShelved("one of them was handled", store.ShelfQuery{Consumer: c}, "1", "2", "4")
	for id, want := range map[string]string{"1": "2 7 many", "2": "2 0 ", "4": "2 7 many"} {
		m := b.shelvedAs(c, id)
		if got := fmt.Sprint(m.Version, m.Attempts, " ", m.Reason); got != want {
			b.failf("after ChangeMany, message %s has Version, Attempts and Reason %q, want %q", id, got, want)
		}
	}
	if changed, err := many.ChangeMany(b, nil); err != nil || len(changed) > 0 {
		b.failf("ChangeMany of nothing returned %v, %v", changed, err)
	}
	invalid := b.shelvedAs(c, "1")
	invalid.State = 99
	valid := b.shelvedAs(c, "4")
	if _, err := many.ChangeMany(b, []store.Shelved{valid, invalid}); !errors.Is(err, once.ErrInvalid) {
		b.failf("ChangeMany to an unknown state returned %v", err)
	}
	b.wantSame("a ChangeMany that is invalid", b.shelvedAs(c, "4"), valid)
}

func shelfQueued[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	queue := store.QueueOf(c)
	b.shelve(aside(c, "1", "k"), aside(queue, "1", "k"), parked(aside(queue, "2", "k")), aside(queue, "3", "k"))
	b.wantShelved("with a queue, its consumer", store.ShelfQuery{Consumer: c, Ready: true}, "1")
	b.wantShelved("the queue", store.ShelfQuery{Consumer: queue}, "1", "2", "3")
	b.wantShelved("what is ready in the queue", store.ShelfQuery{Consumer: queue, Ready: true}, "1")
	ids := func(q store.ShelfQuery) (all string) {
		for _, m := range b.shelved(q) {
			if m.Consumer == c || m.Consumer == queue {
				all += m.Consumer[len(c):] + m.Message.ID + " "
			}
		}
		return all
	}
	if got, want := ids(store.ShelfQuery{Limit: 1000, NoQueued: true}), "1 @@queue2 "; got != want {
		b.failf("with NoQueued, the shelf has %q, want %q", got, want)
	}
}

func shelfChange[Tx any](b *txBench[Tx]) {
	m := aside(b.consumer("a"), "1", "k")
	m.Message.Body, m.Message.Header, m.Origin, m.Reason = everyByte(), map[string]string{"a": "b"}, "queue", "boom"
	b.shelve(m, aside(b.consumer("a"), "2", "k"))
	want, other := b.shelvedAs(m.Consumer, "1"), b.shelvedAs(m.Consumer, "2")
	for i, state := range []store.ShelfState{store.Waiting, store.Parked, store.Waiting, store.Handled, store.Parked,
		store.Discarded} {
		change := want
		change.State, change.Attempts = state, i+1
		change.Reason, change.History = fmt.Sprint("reason é\n", i), fmt.Sprint("line ", i)
		change.Message.Body, change.Message.ID, change.Origin = []byte("is not written"), "neither", "nor this"
		b.must("Change", b.shelf(i).Change(b, change))
		got := b.shelvedAs(m.Consumer, "1")
		want.State, want.Attempts, want.Reason, want.History = state, change.Attempts, change.Reason, change.History
		if want.Version++; got.Updated.Before(want.Updated) {
			b.failf("a Change moved Updated back from %v to %v", want.Updated, got.Updated)
		}
		want.Updated = got.Updated
		b.wantSame("Change", got, want)
	}
	b.wantSame("changes of another message", b.shelvedAs(m.Consumer, "2"), other)
}

func shelfStaleChange[Tx any](b *txBench[Tx]) {
	b.refuseStale("Change", func(m store.Shelved) error { return b.shelf(1).Change(b, m) })
}

func shelfStaleChangeTx[Tx any](b *txBench[Tx]) {
	b.refuseStale("ChangeTx", func(m store.Shelved) (err error) {
		b.inTx(false, func(tx Tx) { err = b.txShelf(1).ChangeTx(b, tx, m) })
		return err
	})
}

// refuseStale makes changes of a message in other versions than it has.
func (b *txBench[Tx]) refuseStale(doing string, change func(store.Shelved) error) {
	c := b.consumer("a")
	b.shelve(aside(c, "1", "k"))
	first := b.shelvedAs(c, "1")
	changed := first
	changed.State, changed.Reason = store.Parked, "changed"
	b.must("Change", b.shelf(0).Change(b, changed))
	present := b.shelvedAs(c, "1")
	future := present
	future.Version++
	for name, m := range map[string]store.Shelved{
		"the version before":         first,
		"a version to come":          future,
		"no version":                 {Seq: first.Seq, Consumer: c},
		"a Seq that was never given": {Seq: first.Seq + 1<<40, Version: 1, Consumer: c},
	} {
		m.State = store.Waiting
		b.wantErr(doing+" of "+name, change(m), once.ErrLeaseLost)
		b.wantSame("a change that was refused", b.shelvedAs(c, "1"), present)
	}
}

func shelfInvalidChange[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(parked(aside(c, "1", "k")))
	present := b.shelvedAs(c, "1")
	long := strings.Repeat("x", 64<<10)
	for what, spoil := range map[string]func(*store.Shelved){
		"no state":         func(m *store.Shelved) { m.State = 0 },
		"an unknown state": func(m *store.Shelved) { m.State = store.Discarded + 1 },
		"a long reason":    func(m *store.Shelved) { m.Reason = long + "x" },
		"a long history":   func(m *store.Shelved) { m.History = long + "x" },
	} {
		m := present
		m.State, m.Attempts = store.Waiting, 7
		spoil(&m)
		b.wantErr("Change to "+what, b.shelf(0).Change(b, m), once.ErrInvalid)
		b.wantSame("a change that was refused", b.shelvedAs(c, "1"), present)
	}
}

// shelfReplay does what people do with messages that were parked in the order of
// one ordering key, and with those that wait for them.
func shelfReplay[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(parked(aside(c, "1", "k")), parked(aside(c, "2", "k")), aside(c, "3", "k"), aside(c, "other", "o"))
	ready := store.ShelfQuery{Consumer: c, Ready: true, BehindParked: true}
	decide := func(id string, state store.ShelfState, history string) {
		m := b.shelvedAs(c, id)
		m.State, m.History, m.Due = state, history, 0
		b.must("Change", b.shelf(1).Change(b, m))
	}
	b.wantShelved("with two that are parked", ready, "other")
	decide("2", store.Waiting, "ana: try again")
	b.wantShelved("with one that is parked, and tries of later ones", ready, "other")
	decide("1", store.Waiting, "ana: try again")
	b.wantShelved("with tries of all", ready, "1", "other")
	decide("1", store.Parked, "ana: try again\nit failed again")
	b.wantShelved("when the first was parked again", ready, "other")
	decide("1", store.Discarded, "ana: give it up")
	b.wantShelved("when the first was given up", ready, "2", "other")
	decide("2", store.Handled, "")
	b.wantShelved("when the second was handled", ready, "3", "other")
	b.wantShelved("all of them", store.ShelfQuery{Consumer: c}, "1", "3", "other")
	if m := b.shelvedAs(c, "1"); m.History != "ana: give it up" || m.Version != 4 {
		b.failf("after three decisions a message has the version %d and the history %q", m.Version, m.History)
	}
}

func shelfChangeRace[Tx any](b *txBench[Tx]) {
	const n = 64
	c := b.consumer("a")
	b.shelve(aside(c, "1", "k"))
	m := b.shelvedAs(c, "1")
	var won atomic.Int32
	b.together(n, func(i int) {
		mine := m
		mine.Reason = fmt.Sprint("racer ", i)
		lost := false
		b.persist("Change", func() error {
			err := b.shelf(i).Change(b, mine)
			if lost = errors.Is(err, once.ErrLeaseLost); lost {
				return nil
			}
			return err
		})
		if !lost {
			won.Add(1)
		}
	})
	if got := b.shelvedAs(c, "1"); won.Load() != 1 || got.Version != 2 {
		b.failf("%d of %d changes of one version were made, and it is %d now", won.Load(), n, got.Version)
	}
}

func shelfChangeTx[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(aside(c, "1", "k"), aside(c, "2", "k"))
	first, second := b.shelvedAs(c, "1"), b.shelvedAs(c, "2")
	both := func(tx Tx) {
		change, gone := first, second
		change.State, gone.State, gone.History = store.Parked, store.Handled, ""
		b.must("ChangeTx", b.txShelf(0).ChangeTx(b, tx, change))
		b.must("ChangeTx", b.txShelf(0).ChangeTx(b, tx, gone))
		got, err := b.txShelf(0).BlockedTx(b, tx, c, []string{"k"}, false)
		if b.must("BlockedTx", err); len(got) > 0 {
			b.failf("BlockedTx does not see what the same transaction has changed: %q", got)
		}
		b.must("Effect", b.effect(tx, "row"))
	}
	b.inTx(false, both)
	b.wantSame("a rollback", b.shelvedAs(c, "1"), first)
	b.wantSame("a rollback", b.shelvedAs(c, "2"), second)
	b.inTx(true, both)
	b.wantShelved("a commit", store.ShelfQuery{Consumer: c, States: []store.ShelfState{store.Parked}}, "1")
	b.wantShelved("a commit", store.ShelfQuery{Consumer: c}, "1")
	b.wantEffects("row", 1)
}

// shelfForget compares counts, so nothing else may forget messages during it.
func shelfForget[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	var ms []store.Shelved
	for i, state := range []store.ShelfState{store.Waiting, store.Parked, store.Handled, store.Discarded, store.Handled,
		store.Discarded, store.Handled} {
		m := aside(c, fmt.Sprint(i), "")
		m.State, m.History = state, "kept"
		ms = append(ms, m)
	}
	b.shelve(ms...)
	all := []string{"0", "1", "2", "3", "4", "5", "6"}
	for _, limit := range []int{0, -1} {
		_, err := b.shelf(0).ForgetShelved(b, 0, limit)
		b.wantErr(fmt.Sprintf("ForgetShelved with a limit of %d", limit), err, once.ErrInvalid)
	}
	b.wantShelved("ForgetShelved without a limit", store.ShelfQuery{Consumer: c}, all...)
	if _, err := b.shelf(0).ForgetShelved(b, long, 1000); err != nil {
		b.failf("ForgetShelved: %v", err)
	}
	b.wantShelved("ForgetShelved of older messages", store.ShelfQuery{Consumer: c}, all...)
	late := b.shelvedAs(c, "3")
	late.State = store.Parked
	b.must("Change", b.shelf(0).Change(b, late))
	left, forgotten := len(all), 0
	b.until("all is forgotten that is to be", func() bool {
		n, err := b.shelf(0).ForgetShelved(b, 0, 2)
		b.must("ForgetShelved", err)
		before := left
		left, forgotten = len(b.shelved(store.ShelfQuery{Consumer: c})), forgotten+n
		if n > 2 || before-left > 2 {
			b.failf("ForgetShelved with a limit of 2 returned %d, and %d are gone", n, before-left)
		}
		return left <= 3
	})
	b.wantShelved("ForgetShelved", store.ShelfQuery{Consumer: c}, "0", "1", "3")
	if forgotten < len(all)-left {
		b.failf("ForgetShelved deleted %d messages, and returned %d", len(all)-left, forgotten)
	}
}
