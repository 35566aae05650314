package storetest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// FaultyOutbox is like [Faulty] for an outbox. The Method of a [Call] is the
// name of the method, and its Key is zero. PutTx is part of the caller's
// transaction and cannot be late.
func FaultyOutbox[Tx any](s store.Outbox[Tx], plan Plan) *FaultyOutboxStore[Tx] {
	return &FaultyOutboxStore[Tx]{store: s, faults: Faulty(nil, plan)}
}

// FaultyOutboxStore is a [store.Outbox] whose calls have the faults of a plan.
// If the store that it wraps has a [store.Bell] or a [store.HandOver], so has
// FaultyOutboxStore, with faults in HearOutbox and HandOver: [once.As] finds it.
// Other capabilities of the store are hidden.
type FaultyOutboxStore[Tx any] struct {
	store  store.Outbox[Tx]
	faults *FaultyStore
}

// Wait waits until the late calls have been made. Their Late must be closed.
func (f *FaultyOutboxStore[Tx]) Wait() { f.faults.Wait() }

// copied returns copies for a call that may last longer than its caller waits.
func copied(ms []store.Outgoing) []store.Outgoing {
	ms = slices.Clone(ms)
	for i := range ms {
		ms[i].Message.Body, ms[i].Message.Header = bytes.Clone(ms[i].Message.Body), maps.Clone(ms[i].Message.Header)
	}
	return ms
}

func copiedRows(rows []store.Shelved) []store.Shelved {
	rows = slices.Clone(rows)
	for i := range rows {
		m := &rows[i].Message
		m.Body, m.Header = bytes.Clone(m.Body), maps.Clone(m.Header)
	}
	return rows
}

// PutTx is PutTx of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) PutTx(ctx context.Context, tx Tx, ms []store.Outgoing) error {
	fault := f.faults.next("PutTx", once.Key{})
	fault.Late = nil
	_, err := suffer(ctx, f.faults, fault, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f.store.PutTx(ctx, tx, ms)
	})
	return err
}

// LeaseLanes is LeaseLanes of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration,
	lanes []int) (store.Leases, error) {

	lanes = slices.Clone(lanes)
	return perform(ctx, f.faults, "LeaseLanes", once.Key{}, func(ctx context.Context) (store.Leases, error) {
		return f.store.LeaseLanes(ctx, relay, ttl, lanes)
	})
}

// ReleaseLanes is ReleaseLanes of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	lanes = slices.Clone(lanes)
	return f.faults.performErr(ctx, "ReleaseLanes", once.Key{}, func(ctx context.Context) error {
		return f.store.ReleaseLanes(ctx, relay, lanes)
	})
}

// Outgoing is Outgoing of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	return perform(ctx, f.faults, "Outgoing", once.Key{}, func(ctx context.Context) ([]store.Outgoing, error) {
		return f.store.Outgoing(ctx, q)
	})
}

// Sent is Sent of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (int, error) {

	ms = copied(ms)
	return perform(ctx, f.faults, "Sent", once.Key{}, func(ctx context.Context) (int, error) {
		return f.store.Sent(ctx, relay, ms, then)
	})
}

// MoveOutgoing is MoveOutgoing of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (int, error) {

	ms = copied(ms)
	return perform(ctx, f.faults, "MoveOutgoing", once.Key{}, func(ctx context.Context) (int, error) {
		return f.store.MoveOutgoing(ctx, relay, ms, to)
	})
}

// WakeDelayed is WakeDelayed of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	type answer struct {
		woken int
		next  time.Duration
	}
	a, err := perform(ctx, f.faults, "WakeDelayed", once.Key{}, func(ctx context.Context) (answer, error) {
		woken, next, err := f.store.WakeDelayed(ctx, relay, to, limit)
		return answer{woken, next}, err
	})
	return a.woken, a.next, err
}

// RemoveOutgoing is RemoveOutgoing of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	ms = copied(ms)
	return perform(ctx, f.faults, "RemoveOutgoing", once.Key{}, func(ctx context.Context) (int, error) {
		return f.store.RemoveOutgoing(ctx, relay, ms)
	})
}

// ForgetOutgoing is ForgetOutgoing of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return perform(ctx, f.faults, "ForgetOutgoing", once.Key{}, func(ctx context.Context) (int, error) {
		return f.store.ForgetOutgoing(ctx, keep, limit)
	})
}

// DecidedOutgoing is DecidedOutgoing of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) DecidedOutgoing(ctx context.Context, onlyStuck bool) ([]store.Outgoing, error) {
	return perform(ctx, f.faults, "DecidedOutgoing", once.Key{}, func(ctx context.Context) ([]store.Outgoing, error) {
		return f.store.DecidedOutgoing(ctx, onlyStuck)
	})
}

// OutboxDepth is OutboxDepth of the store, with the faults of the plan.
func (f *FaultyOutboxStore[Tx]) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	return perform(ctx, f.faults, "OutboxDepth", once.Key{}, func(ctx context.Context) ([]store.Depth, error) {
		return f.store.OutboxDepth(ctx, count)
	})
}

// As finds the [store.Bell] of the store, and its [store.HandOver].
func (f *FaultyOutboxStore[Tx]) As(target any) (found bool) {
	switch target := target.(type) {
	case *store.Bell:
		var inner store.Bell
		inner, found = once.As[store.Bell](f.store)
		*target = faultyBell{f.faults, inner}
	case *store.HandOver:
		var inner store.HandOver
		inner, found = once.As[store.HandOver](f.store)
		*target = faultyHandOver{f.faults, inner}
	}
	return found
}

type faultyHandOver struct {
	faults *FaultyStore
	store  store.HandOver
}

func (f faultyHandOver) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) ([]bool, error) {

	ms, rows = copied(ms), slices.Clone(rows)
	for i := range rows {
		rows[i] = copiedRows(rows[i])
	}
	return perform(ctx, f.faults, "HandOver", once.Key{}, func(ctx context.Context) ([]bool, error) {
		return f.store.HandOver(ctx, relay, ms, rows, then)
	})
}

type faultyBell struct {
	faults *FaultyStore
	bell   store.Bell
}

func (f faultyBell) HearOutbox(ctx context.Context) (store.Ear, error) {
	fault := f.faults.next("HearOutbox", once.Key{})
	fault.Late = nil // nobody would close the ear
	return suffer(ctx, f.faults, fault, f.bell.HearOutbox)
}
