package inbox

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// sealedShelf seals messages as the store's Options say, and opens them when they
// are read.
type sealedShelf struct {
	store.Shelf
	sealing *once.Sealing
}

func (s sealedShelf) sealed(ms []store.Shelved) []store.Shelved {
	all := make([]store.Shelved, len(ms))
	for i, m := range ms {
		all[i] = store.SealShelved(s.sealing, m)
	}
	return all
}

func (s sealedShelf) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.Shelf.Shelve(ctx, s.sealed(ms))
}

func (s sealedShelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	found, err := s.Shelf.Shelved(ctx, q)
	for i := range found {
		found[i] = store.OpenShelved(s.sealing, found[i], q.Bodiless)
	}
	return found, err
}

func (s sealedShelf) Change(ctx context.Context, m store.Shelved) error {
	return s.Shelf.Change(ctx, store.SealReason(s.sealing, m))
}

// sealedTxShelf is a sealedShelf in transactions.
type sealedTxShelf[Tx any] struct {
	shelves store.TxShelf[Tx]
	sealedShelf
}

func (s sealedTxShelf[Tx]) ShelveTx(ctx context.Context, tx Tx, ms []store.Shelved) error {
	return s.shelves.ShelveTx(ctx, tx, s.sealed(ms))
}

func (s sealedTxShelf[Tx]) ChangeTx(ctx context.Context, tx Tx, m store.Shelved) error {
	return s.shelves.ChangeTx(ctx, tx, store.SealReason(s.sealing, m))
}

func (s sealedTxShelf[Tx]) BlockedTx(ctx context.Context, tx Tx, consumer string, orderingKeys []string, parkedToo bool) ([]string, error) {
	return s.shelves.BlockedTx(ctx, tx, consumer, orderingKeys, parkedToo)
}
