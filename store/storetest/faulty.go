package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// Plan decides what becomes of each call of a store. It may be called concurrently.
type Plan func(Call) Fault

// Call is one call of a store.
type Call struct {
	Method string   // "Claim", "Extend", "Settle", "Get", "Forget", "List", "Transact", "ClaimTx", "SettleTx"
	N      int      // which call of that method it is, from 1
	Key    once.Key // what it is about, the first of several; zero for Forget and List
}

// Fault is what goes wrong with a call. The zero Fault: nothing.
type Fault struct {
	Before time.Duration // passes before the call reaches the store
	After  time.Duration // passes before its reply comes back

	// Request: the call does not reach the store, and this error comes back.
	Request error

	// Reply: the call is carried out, and this error comes back in place of its reply.
	// For a Transact, [once.ErrOutcomeUnknown] is the lost reply to a commit.
	Reply error

	// Undo: Transact runs its body and rolls everything back, and this error comes back. [once.ErrConflict] is
	// a deadlock, [once.ErrOutcomeUnknown] a commit that never arrived. Other calls, and a Transact whose claims are lost,
	// have nothing to undo and succeed.
	Undo error

	// Late: Reply comes back at once, once.ErrOutcomeUnknown if there is none, and the call is carried out when Late
	// is closed. Transact runs its body before it comes back, and commits late.
	// ClaimTx and SettleTx are part of somebody else's transaction and cannot be late.
	Late <-chan struct{}
}

// On is the plan in which the n-th call of a method goes wrong; every call of it if n is 0.
func On(method string, n int, f Fault) Plan {
	return func(c Call) Fault {
		if c.Method == method && (n == 0 || n == c.N) {
			return f
		}
		return Fault{}
	}
}

// Faulty returns a store that goes wrong as planned. Several plans are several wrappers around each other.
func Faulty(s once.Store, plan Plan) *FaultyStore {
	return &FaultyStore{store: s, plan: plan, calls: make(map[string]int)}
}

// FaultyStore is a [once.Store] on which calls go wrong as planned. It is a [once.Lister] if its store is one;
// List fails with [errors.ErrUnsupported] if it is not.
type FaultyStore struct {
	store once.Store
	plan  Plan
	late  sync.WaitGroup

	mu    sync.Mutex
	calls map[string]int
}

var (
	_ once.Store  = (*FaultyStore)(nil)
	_ once.Lister = (*FaultyStore)(nil)
)

// Wait waits until the calls that were late have been carried out. Their Late must be closed.
func (f *FaultyStore) Wait() { f.late.Wait() }

// Options forwards those of the store.
func (f *FaultyStore) Options() *once.Options { return f.store.Options() }

// Claim is that of the store, unless it goes wrong.
func (f *FaultyStore) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	r.Fingerprint = bytes.Clone(r.Fingerprint) // the call may outlive its caller
	return perform(ctx, f, "Claim", r.Key, func(ctx context.Context) (once.Record, error) { return f.store.Claim(ctx, r) })
}

// Extend is that of the store, unless it goes wrong.
func (f *FaultyStore) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return f.performErr(ctx, "Extend", fence.Key, func(ctx context.Context) error { return f.store.Extend(ctx, fence, d) })
}

// Settle is that of the store, unless it goes wrong.
func (f *FaultyStore) Settle(ctx context.Context, set once.Settlement) error {
	set.Outcome.Body = bytes.Clone(set.Outcome.Body) // the call may outlive its caller
	return f.performErr(ctx, "Settle", set.Key, func(ctx context.Context) error { return f.store.Settle(ctx, set) })
}

// Get is that of the store, unless it goes wrong.
func (f *FaultyStore) Get(ctx context.Context, k once.Key) (once.Record, error) {
	return perform(ctx, f, "Get", k, func(ctx context.Context) (once.Record, error) { return f.store.Get(ctx, k) })
}

// Forget is that of the store, unless it goes wrong.
func (f *FaultyStore) Forget(ctx context.Context, limit int) (int, error) {
	return perform(ctx, f, "Forget", once.Key{}, func(ctx context.Context) (int, error) { return f.store.Forget(ctx, limit) })
}

// List is that of the store, unless it goes wrong.
func (f *FaultyStore) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	l, ok := f.store.(once.Lister)
	if !ok {
		return once.RecordPage{}, fmt.Errorf("%w: %T cannot list its records", errors.ErrUnsupported, f.store)
	}
	return perform(ctx, f, "List", once.Key{}, func(ctx context.Context) (once.RecordPage, error) { return l.List(ctx, q) })
}

func (f *FaultyStore) performErr(ctx context.Context, method string, k once.Key, call func(context.Context) error) error {
	_, err := perform(ctx, f, method, k, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// next is what is planned for a call.
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

// suffer makes a call that goes wrong.
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
