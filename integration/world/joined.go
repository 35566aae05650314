package world

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/memstore"
)

// within runs work in a transaction: one of its own, or one that the program begins
// and commits.
func (o *producer) within(ctx context.Context, s *sim.StoreLink, w once.Work[string],
	run func(context.Context, *memstore.Tx) (string, error)) error {

	if !o.Joins {
		_, err := once.DoTx(ctx, s, w, run)
		return err
	}
	return s.InTransaction(ctx, sim.KeyText(w.Key()), func(tx *memstore.Tx) error {
		_, err := once.InTx(ctx, s, tx, w, func(ctx context.Context) (string, error) { return run(ctx, tx) })
		return err
	})
}
