// Package txpool has one pool, and its store is made elsewhere.
package txpool

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once"
)

type Shop struct {
	keys once.TxStore[*sql.Tx]
	db   *sql.DB
	op   *once.Operation[string]
}

func NewShop(keys once.TxStore[*sql.Tx], db *sql.DB) *Shop { return &Shop{keys: keys, db: db} }

func (s *Shop) Buy(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.keys, s.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := s.db.ExecContext(ctx, "INSERT") // want `txpool: s.db.ExecContext is not part of the transaction of once.DoTx: use tx`
		return "", err
	})
}
