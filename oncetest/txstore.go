package oncetest

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Store is like [Plain] for a transactional store. The steps of a transaction are
// "begin" and "commit". The calls of [store.Positions] and [store.TxShelf] are
// steps, too. A transaction that the service began itself is rolled back only by
// what the service has deferred.
func Store[Tx any](p *Process, s once.TxStore[Tx]) once.TxStore[Tx] {
	if s == nil {
		return nil
	}
	return &txStore[Tx]{newPlain(p, s), s}
}

// txStore is a transactional store whose calls are steps.
type txStore[Tx any] struct {
	*plainStore
	inner once.TxStore[Tx]
}

// As finds the capabilities whose calls are steps.
func (s *txStore[Tx]) As(target any) bool {
	switch target := target.(type) {
	case *store.Positions[Tx]:
		return stepped(s.inner, target, func(o store.Positions[Tx]) store.Positions[Tx] { return &positions[Tx]{s.process, o} })
	case *store.TxShelf[Tx]:
		return stepped(s.inner, target, func(f store.TxShelf[Tx]) store.TxShelf[Tx] { return &txShelf[Tx]{&shelf{s.process, f}, f} })
	}
	return s.plainStore.As(target)
}

func (s *txStore[Tx]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	err = s.process.transaction(func(enter func(), leave func() error) error {
		s.process.claimed(s.inner, rs, nil, false)
		recs, err = s.inner.Transact(ctx, rs, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			enter()
			sets, err := body(tx, recs)
			if err != nil {
				return nil, err
			}
			return sets, leave()
		})
		return err
	})
	return recs, err
}

func (s *txStore[Tx]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) (recs []once.Record, err error) {
	err = s.process.cross("claim", func() error {
		s.process.claimed(s.inner, rs, nil, false)
		recs, err = s.inner.ClaimTx(ctx, tx, rs)
		return err
	})
	return recs, err
}

func (s *txStore[Tx]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	return s.process.cross("settle", func() error { return s.inner.SettleTx(ctx, tx, sets) })
}

type positions[Tx any] struct {
	process *Process
	inner   store.Positions[Tx]
}

func (o *positions[Tx]) OpenPosition(ctx context.Context, consumer, partition string) (at store.Position, err error) {
	err = o.process.cross("open position", func() error {
		at, err = o.inner.OpenPosition(ctx, consumer, partition)
		return err
	})
	return at, err
}

func (o *positions[Tx]) TransactAt(ctx context.Context, from, to store.Position, body func(Tx) error) error {
	return o.process.transaction(func(enter func(), leave func() error) error {
		return o.inner.TransactAt(ctx, from, to, func(tx Tx) error {
			enter()
			if err := body(tx); err != nil {
				return err
			}
			return leave()
		})
	})
}

func (o *positions[Tx]) SetPosition(ctx context.Context, at store.Position) error {
	return o.process.cross("set position", func() error { return o.inner.SetPosition(ctx, at) })
}

func (o *positions[Tx]) Positions(ctx context.Context, consumer string) (all []store.Position, err error) {
	err = o.process.look(func() error {
		all, err = o.inner.Positions(ctx, consumer)
		return err
	})
	return all, err
}

type txShelf[Tx any] struct {
	*shelf
	inner store.TxShelf[Tx]
}

func (f *txShelf[Tx]) ShelveTx(ctx context.Context, tx Tx, ms []store.Shelved) error {
	return f.process.cross("shelve", func() error { return f.inner.ShelveTx(ctx, tx, ms) })
}

func (f *txShelf[Tx]) BlockedTx(ctx context.Context, tx Tx, consumer string, keys []string, parkedToo bool) (blocked []string, err error) {
	err = f.process.look(func() error {
		blocked, err = f.inner.BlockedTx(ctx, tx, consumer, keys, parkedToo)
		return err
	})
	return blocked, err
}

func (f *txShelf[Tx]) ChangeTx(ctx context.Context, tx Tx, m store.Shelved) error {
	return f.process.cross("change", func() error { return f.inner.ChangeTx(ctx, tx, m) })
}
