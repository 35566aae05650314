package storetest

import (
	"bytes"
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/effectively-once/once"
)

// FaultyTx is like [Faulty] for a transactional store.
func FaultyTx[Tx any](s once.TxStore[Tx], plan Plan) *FaultyTxStore[Tx] {
	return &FaultyTxStore[Tx]{FaultyStore: Faulty(s, plan), store: s}
}

// FaultyTxStore is a [once.TxStore] whose calls have the faults of a plan.
type FaultyTxStore[Tx any] struct {
	*FaultyStore
	store once.TxStore[Tx]
}

// Transact is Transact of the store, with the faults of the plan.
func (f *FaultyTxStore[Tx]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	fault := f.next("Transact", firstKey(rs))
	call := func(ctx context.Context) ([]once.Record, error) { return f.store.Transact(ctx, rs, body) }
	switch {
	case fault.Undo != nil:
		call = func(ctx context.Context) ([]once.Record, error) { return f.undo(ctx, rs, body, fault.Undo) }
	case fault.Late != nil:
		late := fault
		fault.Late = nil // only the commit is late
		call = func(ctx context.Context) ([]once.Record, error) { return f.commitLate(ctx, rs, body, late) }
	}
	return suffer(ctx, f.FaultyStore, fault, call)
}

func (f *FaultyTxStore[Tx]) undo(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error), undo error) ([]once.Record, error) {

	undone := false
	recs, err := f.store.Transact(ctx, rs, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
		sets, err := body(tx, recs)
		if err == nil {
			err, undone = undo, true
		}
		return sets, err
	})
	if undone {
		return nil, undo
	}
	return recs, err
}

// transacted is the result of a Transact that continued after it returned to
// its caller.
type transacted struct {
	recs     []once.Record
	err      error
	panicked any
	returned bool
}

// commitLate runs the body and returns. The transaction commits when Late of
// the fault is closed.
func (f *FaultyTxStore[Tx]) commitLate(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error), fault Fault) ([]once.Record, error) {

	ready, ended := make(chan struct{}), make(chan transacted, 1)
	var first sync.Once // a Speculative transaction may call its body again
	f.late.Add(1)
	go func() {
		defer f.late.Done()
		var t transacted
		defer func() { ended <- t }()
		defer func() {
			if !t.returned {
				t.panicked = recover()
			}
		}()
		t.recs, t.err = f.store.Transact(context.WithoutCancel(ctx), rs, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := body(tx, recs)
			if err == nil {
				sets = keep(sets)
				first.Do(func() { close(ready) })
				<-fault.Late
			}
			return sets, err
		})
		t.returned = true
	}()
	select {
	case <-ready:
		return nil, cmp.Or(fault.Reply, once.ErrOutcomeUnknown)
	case t := <-ended: // before there was anything to commit
		switch {
		case t.panicked != nil:
			panic(t.panicked)
		case !t.returned:
			runtime.Goexit()
		}
		return t.recs, t.err
	}
}

// keep copies settlements, which belong to the caller once the call returns.
func keep(sets []once.Settlement) []once.Settlement {
	kept := slices.Clone(sets)
	for i := range kept {
		kept[i].Outcome.Body = bytes.Clone(kept[i].Outcome.Body)
	}
	return kept
}

// ClaimTx is ClaimTx of the store, with the faults of the plan.
func (f *FaultyTxStore[Tx]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	fault := f.next("ClaimTx", firstKey(rs))
	fault.Late = nil
	return suffer(ctx, f.FaultyStore, fault, func(ctx context.Context) ([]once.Record, error) { return f.store.ClaimTx(ctx, tx, rs) })
}

// SettleTx is SettleTx of the store, with the faults of the plan.
func (f *FaultyTxStore[Tx]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	var k once.Key
	if len(sets) > 0 {
		k = sets[0].Key
	}
	fault := f.next("SettleTx", k)
	fault.Late = nil
	_, err := suffer(ctx, f.FaultyStore, fault, func(ctx context.Context) (struct{}, error) { return struct{}{}, f.store.SettleTx(ctx, tx, sets) })
	return err
}

func firstKey(rs []once.ClaimRequest) (k once.Key) {
	if len(rs) > 0 {
		k = rs[0].Key
	}
	return k
}
