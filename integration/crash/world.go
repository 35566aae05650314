//go:build linux

package crash

import (
	"context"

	"github.com/effectively-once/once"
)

// world is an engine with a store, and a table for effects in the database.
type world interface {
	once.Store

	// setUp creates the tables of the store and of the effects.
	setUp(context.Context) error
	migrate(context.Context) error
	// rows returns the marks of the effects of an ID.
	rows(ctx context.Context, id string) ([]string, error)
	// doTx and doTxPlain are once.DoTx, with an answer and without one.
	doTx(context.Context, once.Work[string], insideWork[string]) (string, error)
	doTxPlain(context.Context, once.Work[struct{}], insideWork[struct{}]) error
	// inTx calls once.InTx in a transaction that it begins, and commits if the
	// work succeeds.
	inTx(context.Context, once.Work[string], insideWork[string]) (string, error)
	leaseExtended() <-chan struct{}
	betweenBeats(func())
	close()
}

// insideWork is work in a transaction. It calls put to make an effect.
type insideWork[T any] func(ctx context.Context, put func(id, mark string) error) (T, error)

const (
	createEffects = "CREATE TABLE effect (id VARCHAR(100) NOT NULL, mark VARCHAR(100) NOT NULL)"
	indexEffects  = "CREATE INDEX effect_id ON effect (id)"
)

// on is a world with the transaction type Tx. Its functions are those of the
// engine.
type on[Tx any] struct {
	*trappedStore[Tx]
	exec    func(ctx context.Context, statement string) error
	tables  func(context.Context) error
	list    func(ctx context.Context, id string) ([]string, error)
	insert  func(ctx context.Context, tx Tx, id, mark string) error
	inOwnTx func(ctx context.Context, work func(Tx) error) error
	end     func()
}

func (w *on[Tx]) close() { w.end() }

func (w *on[Tx]) leaseExtended() <-chan struct{} { return w.extended }

func (w *on[Tx]) migrate(ctx context.Context) error { return w.tables(ctx) }

func (w *on[Tx]) setUp(ctx context.Context) error {
	for _, statement := range []string{createEffects, indexEffects} {
		if err := w.exec(ctx, statement); err != nil {
			return err
		}
	}
	return w.migrate(ctx)
}

func (w *on[Tx]) rows(ctx context.Context, id string) ([]string, error) { return w.list(ctx, id) }

func (w *on[Tx]) doTx(ctx context.Context, unit once.Work[string], work insideWork[string]) (string, error) {
	return once.DoTx(ctx, w.trappedStore, unit, func(ctx context.Context, tx Tx) (string, error) { return work(ctx, w.putter(ctx, tx)) })
}

func (w *on[Tx]) doTxPlain(ctx context.Context, unit once.Work[struct{}], work insideWork[struct{}]) error {
	_, err := once.DoTx(ctx, w.trappedStore, unit, func(ctx context.Context, tx Tx) (struct{}, error) { return work(ctx, w.putter(ctx, tx)) })
	return err
}

func (w *on[Tx]) inTx(ctx context.Context, unit once.Work[string], work insideWork[string]) (answer string, err error) {
	err = w.inOwnTx(ctx, func(tx Tx) error {
		answer, err = once.InTx(ctx, w.trappedStore, tx, unit, func(ctx context.Context) (string, error) { return work(ctx, w.putter(ctx, tx)) })
		return err
	})
	return answer, err
}

func (w *on[Tx]) putter(ctx context.Context, tx Tx) func(id, mark string) error {
	return func(id, mark string) error { return w.insert(ctx, tx, id, mark) }
}
