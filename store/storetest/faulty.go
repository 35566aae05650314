package storetest

import (
	"bytes"
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// Plan decides what goes wrong with each call of a store. It may be called
// concurrently.
type Plan func(Call) Fault

// Call is one call of a store.
type Call struct {
	Method string   // "Claim", "Extend", "Settle", "Get", "Forget", "List", "Transact", "ClaimTx", "SettleTx"
	N      int      // the number of the call of this method, from 1
	Key    once.Key // of the call, the first of several; zero for Forget and List
}

// Fault is what goes wrong with a call. The zero Fault is no fault.
type Fault struct {
	Before time.Duration // the delay of the call
	After  time.Duration // the delay of its reply

	// Request, if set, is returned in place of making the call.
	Request error

	// Reply, if set, is returned in place of the result of the call. For Transact,
	// [once.ErrOutcomeUnknown] is the lost reply to COMMIT.
	Reply error

	// Undo, if set, makes Transact run its body, roll back, and return this error.
	// [once.ErrConflict] is a deadlock, and [once.ErrOutcomeUnknown] is a COMMIT
	// that never arrived. Undo has no effect on other calls, or on a Transact
	// whose claims are lost.
	Undo error

	// Late, if set, makes a call return Reply at once, or once.ErrOutcomeUnknown
	// if Reply is nil. The call is made when Late is closed. Transact runs its
	// body before it returns, and commits late. ClaimTx and SettleTx are part of
	// the caller's transaction and cannot be late.
	Late <-chan struct{}
}

// On returns a plan in which the n-th call of a method has a fault. If n is 0,
// each call of the method has it.
func On(method string, n int, f Fault) Plan {
	return func(c Call) Fault {
		if c.Method == method && (n == 0 || n == c.N) {
			return f
		}
		return Fault{}
	}
}

// Faulty returns a store whose calls have the faults of a plan. To use several
// plans, wrap it several times.
func Faulty(s once.Store, plan Plan) *FaultyStore {
	return &FaultyStore{store: s, plan: plan, calls: make(map[string]int)}
}

// FaultyStore is a [once.Store] whose calls have the faults of a plan. If the
// store that it wraps has a [once.Lister], so has FaultyStore, with faults.
// [once.As] finds it, and the other capabilities of the store, without faults.
type FaultyStore struct {
	store once.Store
	plan  Plan
	late  sync.WaitGroup

	mu    sync.Mutex
	calls map[string]int
}

var _ once.Store = (*FaultyStore)(nil)

// Wait waits until the late calls have been made. Their Late must be closed.
func (f *FaultyStore) Wait() { f.late.Wait() }

// Options returns those of the store.
func (f *FaultyStore) Options() *once.Options { return f.store.Options() }

// Claim is Claim of the store, with the faults of the plan.
func (f *FaultyStore) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	r.Fingerprint = bytes.Clone(r.Fingerprint) // the call may outlive its caller
	return perform(ctx, f, "Claim", r.Key, func(ctx context.Context) (once.Record, error) { return f.store.Claim(ctx, r) })
}

// Extend is Extend of the store, with the faults of the plan.
func (f *FaultyStore) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return f.performErr(ctx, "Extend", fence.Key, func(ctx context.Context) error { return f.store.Extend(ctx, fence, d) })
}

// Settle is Settle of the store, with the faults of the plan.
func (f *FaultyStore) Settle(ctx context.Context, set once.Settlement) error {
	set.Outcome.Body = bytes.Clone(set.Outcome.Body) // the call may outlive its caller
	return f.performErr(ctx, "Settle", set.Key, func(ctx context.Context) error { return f.store.Settle(ctx, set) })
}

// Get is Get of the store, with the faults of the plan.
func (f *FaultyStore) Get(ctx context.Context, k once.Key) (once.Record, error) {
	return perform(ctx, f, "Get", k, func(ctx context.Context) (once.Record, error) { return f.store.Get(ctx, k) })
}

// Forget is Forget of the store, with the faults of the plan.
func (f *FaultyStore) Forget(ctx context.Context, limit int) (int, error) {
	return perform(ctx, f, "Forget", once.Key{}, func(ctx context.Context) (int, error) { return f.store.Forget(ctx, limit) })
}

// Unwrap returns the store that it wraps.
func (f *FaultyStore) Unwrap() once.Store { return f.store }

// As finds the [once.Lister] of the store.
func (f *FaultyStore) As(target any) bool {
	l, ok := target.(*once.Lister)
	if !ok {
		return false
	}
	inner, ok := once.As[once.Lister](f.store)
	*l = faultyLister{f, inner}
	return ok
}

type faultyLister struct {
	faults *FaultyStore
	lister once.Lister
}

func (f faultyLister) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	return perform(ctx, f.faults, "List", once.Key{}, func(ctx context.Context) (once.RecordPage, error) {
		return f.lister.List(ctx, q)
	})
}

func (f *FaultyStore) performErr(ctx context.Context, method string, k once.Key, call func(context.Context) error) error {
	_, err := perform(ctx, f, method, k, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// next returns the fault of a call.
func (f *FaultyStore) next(method string, k once.Key) Fault {
	f.mu.Lock()
	f.calls[method]++
	c := Call{Method: method, N: f.calls[method], Key: k}
	f.mu.Unlock()
	return f.plan(c)
}

func perform[T any](ctx context.Context, f *FaultyStore, method string, k once.Key, call func(context.Context) (T, error)) (T, error) {
	return suffer(ctx, f, f.next(method, k), call)
}

// suffer makes a call with a fault.
func suffer[T any](ctx context.Context, f *FaultyStore, fault Fault, call func(context.Context) (T, error)) (none T, err error) {
	if err := pause(ctx, fault.Before); err != nil {
		return none, err
	}
	switch {
	case fault.Request != nil:
		return none, fault.Request
	case fault.Late != nil:
		f.later(fault, func() { _, _ = call(context.WithoutCancel(ctx)) })
		return none, cmp.Or(fault.Reply, once.ErrOutcomeUnknown)
	}
	result, err := call(ctx)
	if fault.Reply != nil {
		err = fault.Reply
	}
	if gone := pause(ctx, fault.After); gone != nil {
		err = gone
	}
	if err != nil {
		return none, err
	}
	return result, nil
}

func (f *FaultyStore) later(fault Fault, call func()) {
	f.late.Add(1)
	go func() {
		defer f.late.Done()
		<-fault.Late
		call()
	}()
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
