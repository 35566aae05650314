// Package txpool has two pools, and its store is made elsewhere.
package txpool

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once"
)

type Shop struct {
	keys   once.TxStore[*sql.Tx]
	db     *sql.DB
	legacy *sql.DB
	op     *once.Operation[string]
}

func (s *Shop) Price(ctx context.Context) (price string, err error) {
	return once.DoTx(ctx, s.keys, s.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		return price, s.legacy.QueryRowContext(ctx, "SELECT").Scan(&price)
	})
}

func (s *Shop) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }
