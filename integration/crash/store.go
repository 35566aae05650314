//go:build linux

package crash

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// trappedStore passes the trap before and after each method of a store, and around the body of a transaction.
type trappedStore[Tx any] struct {
	once.TxStore[Tx]
	trap     *trap
	extended chan struct{} // receives when a lease was extended; has a buffer of one
	beat     sync.RWMutex  // locked for reading while a lease is extended
}

func newTrappedStore[Tx any](s once.TxStore[Tx], t *trap) *trappedStore[Tx] {
	return &trappedStore[Tx]{TxStore: s, trap: t, extended: make(chan struct{}, 1)}
}

// Unwrap returns the store without the trap.
func (s *trappedStore[Tx]) Unwrap() once.Store { return s.TxStore }

func (s *trappedStore[Tx]) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	defer s.trap.around("store:claim")()
	return s.TxStore.Claim(ctx, r)
}

func (s *trappedStore[Tx]) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	s.beat.RLock()
	defer s.beat.RUnlock()
	defer s.noteExtended()
	defer s.trap.around("store:extend")()
	return s.TxStore.Extend(ctx, fence, d)
}

func (s *trappedStore[Tx]) noteExtended() {
	select {
	case s.extended <- struct{}{}:
	default:
	}
}

// betweenBeats calls do while no lease is being extended.
func (s *trappedStore[Tx]) betweenBeats(do func()) {
	s.beat.Lock()
	defer s.beat.Unlock()
	do()
}

func (s *trappedStore[Tx]) Settle(ctx context.Context, set once.Settlement) error {
	defer s.trap.around("store:settle " + set.Status.String())()
	return s.TxStore.Settle(ctx, set)
}

func (s *trappedStore[Tx]) Get(ctx context.Context, k once.Key) (once.Record, error) {
	defer s.trap.around("store:get")()
	return s.TxStore.Get(ctx, k)
}

func (s *trappedStore[Tx]) Forget(ctx context.Context, limit int) (int, error) {
	defer s.trap.around("store:forget")()
	return s.TxStore.Forget(ctx, limit)
}

func (s *trappedStore[Tx]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	defer s.trap.around("store:transact")()
	return s.TxStore.Transact(ctx, rs, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
		defer s.trap.around("store:body")()
		return body(tx, recs)
	})
}

func (s *trappedStore[Tx]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	defer s.trap.around("store:claim in tx")()
	return s.TxStore.ClaimTx(ctx, tx, rs)
}

func (s *trappedStore[Tx]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	defer s.trap.around("store:settle in tx")()
	return s.TxStore.SettleTx(ctx, tx, sets)
}
