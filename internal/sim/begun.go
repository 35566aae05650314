package sim

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// InTransaction runs body in a transaction that the program itself begins, and
// commits if body returns nil. COMMIT is as in Transact.
func (l *StoreLink) InTransaction(ctx context.Context, about string, body func(*memstore.Tx) error) error {
	if err := l.begin(ctx, about); err != nil {
		return err
	}
	c := l.commit(ctx, about)
	_, err := c.run(func(context.Context) ([]once.Record, error) {
		tx := l.at.Begin()
		defer tx.Rollback() // after the commit it does nothing
		if err := body(tx); err != nil {
			l.shared.touchedBy(tx)
			return nil, err
		}
		if err := c.arrives(tx); err != nil {
			return nil, err
		}
		return nil, tx.Commit()
	})
	return err
}
