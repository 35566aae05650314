// Package txpool has statements beside their transaction.
package txpool

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgx.CommandTag, error)
}

// Queries is as sqlc generates it.
type Queries struct{ db querier }

func New(db querier) *Queries                                    { return &Queries{db} }
func (q *Queries) WithTx(tx pgx.Tx) *Queries                     { return &Queries{tx} }
func (q *Queries) AddOrder(ctx context.Context, id string) error { return nil }

type shop struct {
	pool    *pgxpool.Pool
	db      *sql.DB
	store   once.TxStore[pgx.Tx]
	keys    *sqlstore.Store
	queries *Queries
	op      *once.Operation[string]
}

func (s *shop) direct(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		if err := s.pool.Ping(ctx); err != nil {
			return "", err
		}
		if _, err := tx.Exec(ctx, "INSERT"); err != nil {
			return "", err
		}
		var n int
		if err := s.pool.QueryRow(ctx, "SELECT").Scan(&n); err != nil { // want `txpool: s.pool.QueryRow is not part of the transaction of once.DoTx: use tx`
			return "", err
		}
		_, err := s.pool.Exec(ctx, "INSERT") // want `txpool: s.pool.Exec is not part of the transaction`
		return "", err
	})
}

func (s *shop) others(ctx context.Context) {
	_ = inbox.Tx(s.keys, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		_, err := s.db.ExecContext(ctx, "INSERT") // want `txpool: s.db.ExecContext is not part of the transaction of inbox.Tx: use tx`
		return err
	})
	_ = inbox.Tx(s.keys, func(ctx context.Context, _ *sql.Tx, m *broker.Message) error {
		inner, err := s.db.BeginTx(ctx, nil) // want `txpool: s.db.BeginTx is not part of the transaction of inbox.Tx: use the transaction`
		if err != nil {
			return err
		}
		return inner.Commit()
	})
	_ = httponce.HandlerTx(s.keys, nil, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		return s.save(r.Context()) // want `txpool: s.db.ExecContext \(in save\) is not part of the transaction of httponce.HandlerTx: use tx`
	}, nil)
	var tx *sql.Tx
	_, _ = once.InTx(ctx, s.keys, tx, s.op.For("1"), func(ctx context.Context) (string, error) {
		if _, err := tx.ExecContext(ctx, "INSERT"); err != nil {
			return "", err
		}
		_, err := s.db.ExecContext(ctx, "INSERT") // want `txpool: s.db.ExecContext is not part of the transaction of once.InTx: use tx`
		return "", err
	})
}

func (s *shop) save(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "INSERT")
	return err
}

func (s *shop) outside(ctx context.Context) (string, error) {
	return once.Do(ctx, s.keys, s.op.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		return "", s.save(ctx) // Do has no transaction
	})
}

func insert(ctx context.Context, q querier) error {
	_, err := q.Exec(ctx, "INSERT")
	return err
}

func (s *shop) passed(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		if err := insert(ctx, tx); err != nil {
			return "", err
		}
		return "", insert(ctx, s.pool) // want `txpool: insert gets s.pool, which is not part of the transaction of once.DoTx: use tx`
	})
}

func (s *shop) generated(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		q := s.queries.WithTx(tx)
		if err := q.AddOrder(ctx, "1"); err != nil {
			return "", err
		}
		if err := s.queries.WithTx(tx).AddOrder(ctx, "1"); err != nil {
			return "", err
		}
		if err := New(tx).AddOrder(ctx, "1"); err != nil {
			return "", err
		}
		return "", s.queries.AddOrder(ctx, "1") // want `txpool: s.queries.AddOrder is not part of the transaction of once.DoTx: use s.queries.WithTx`
	})
}
