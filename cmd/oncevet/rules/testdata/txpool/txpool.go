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
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/uptrace/bun"
	"gorm.io/gorm"
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

func newShop(pool *pgxpool.Pool, db *sql.DB, queries *Queries) *shop {
	return &shop{pool: pool, db: db, store: pgstore.New(pool, nil), keys: sqlstore.New(db, sqlstore.MySQL, nil),
		queries: queries}
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

func (s *shop) byAnotherName(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		alias := s.pool
		if err := alias.Ping(ctx); err != nil {
			return "", err
		}
		_, err := alias.Exec(ctx, "INSERT") // want `txpool: alias.Exec is not part of the transaction`
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

type mapped struct {
	store *sqlstore.Store
	bun   *bun.DB
	gorm  *gorm.DB
	op    *once.Operation[string]
}

func newMapped(db *sql.DB, g *gorm.DB) *mapped {
	return &mapped{bun: bun.NewDB(db, nil), gorm: g, store: sqlstore.New(db, sqlstore.MySQL, nil)}
}

func (m *mapped) ofBun(ctx context.Context) error {
	return m.bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := once.InTx(ctx, m.store, tx.Tx, m.op.For("1"), func(ctx context.Context) (string, error) {
			if err := tx.NewInsert().Exec(ctx); err != nil {
				return "", err
			}
			return "", m.bun.NewInsert().Exec(ctx) // want `txpool: m.bun.NewInsert is not part of the transaction of once.InTx`
		})
		return err
	})
}

func (m *mapped) ofGorm(ctx context.Context) (string, error) {
	return once.DoTx(ctx, m.store, m.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		db := m.gorm.Session(&gorm.Session{NewDB: true})
		db.Statement.ConnPool = tx
		if err := db.WithContext(ctx).Create(1).Error; err != nil {
			return "", err
		}
		return "", m.gorm.WithContext(ctx).Create(1).Error // want `txpool: m.gorm.WithContext\(ctx\).Create is not part of the transaction of once.DoTx`
	})
}

func (m *mapped) ofGormInTx(ctx context.Context) error {
	return m.gorm.Transaction(func(tx *gorm.DB) error {
		inner := tx.Statement.ConnPool.(*sql.Tx)
		_, err := once.InTx(ctx, m.store, inner, m.op.For("1"), func(ctx context.Context) (string, error) {
			return "", tx.WithContext(ctx).Create(1).Error
		})
		return err
	})
}

// prices has pools of other databases than that of the store.
type prices struct {
	legacy  *sql.DB
	list    *bun.DB
	replica *pgxpool.Pool
	shop    *shop
}

func newPrices(legacy *sql.DB, list *bun.DB, s *shop) *prices {
	return &prices{legacy: legacy, list: list, shop: s}
}

func (p *prices) get(ctx context.Context) (string, error) {
	return once.DoTx(ctx, p.shop.keys, p.shop.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		var price string
		if err := p.legacy.QueryRowContext(ctx, "SELECT").Scan(&price); err != nil {
			return "", err
		}
		_ = p.list.NewInsert()
		if err := read(ctx, p.legacy); err != nil {
			return "", err
		}
		if err := read(ctx, p.shop.db); err != nil { // want `txpool: read gets p.shop.db, which is not part of the transaction of once.DoTx: use tx`
			return "", err
		}
		if err := readAny(ctx, p.legacy); err != nil {
			return "", err
		}
		err := p.shop.db.QueryRowContext(ctx, "SELECT").Scan(&price) // want `txpool: p.shop.db.QueryRowContext is not part of the transaction of once.DoTx: use tx`
		return price, err
	})
}

func (p *prices) ofReplica(ctx context.Context) (string, error) {
	return once.DoTx(ctx, p.shop.store, p.shop.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		var price string
		return price, p.replica.QueryRow(ctx, "SELECT").Scan(&price)
	})
}

type reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func read(ctx context.Context, r reader) error { return nil }

// readAny gets the pools of several databases.
func readAny(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "SELECT")
	return err
}

func (p *prices) all(ctx context.Context) error {
	if err := readAny(ctx, p.legacy); err != nil {
		return err
	}
	return readAny(ctx, p.shop.db)
}

func passes(ctx context.Context, s *shop) error {
	return s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.pool.Exec(ctx, "UPDATE") // want `txpool: s.pool.Exec is not part of the transaction of once.DoTx: use tx`
		return err
	})
}

func (s *shop) inTx(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	_, err := once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		return "", do(ctx, tx)
	})
	return err
}

func (s *shop) underAnotherName(ctx context.Context) (string, error) {
	exec := s.pool.Exec
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		of := tx.Exec
		if _, err := of(ctx, "UPDATE"); err != nil {
			return "", err
		}
		_, err := exec(ctx, "UPDATE") // want `txpool: exec is not part of the transaction of once.DoTx: use tx`
		return "", err
	})
}

// withOrWithout runs a statement in a transaction, if there is one.
func withOrWithout(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx) error {
	if tx != nil {
		_, err := tx.Exec(ctx, "UPDATE")
		return err
	}
	_, err := pool.Exec(ctx, "UPDATE")
	return err
}

func eitherOr(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx) (err error) {
	if tx == nil {
		_, err = pool.Exec(ctx, "UPDATE")
	} else {
		_, err = tx.Exec(ctx, "UPDATE")
	}
	return err
}

func both(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx) error {
	if tx != nil {
		if _, err := tx.Exec(ctx, "UPDATE"); err != nil {
			return err
		}
	}
	_, err := pool.Exec(ctx, "UPDATE")
	return err
}

func (s *shop) maybeInTx(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		if err := withOrWithout(ctx, s.pool, tx); err != nil {
			return "", err
		}
		if err := eitherOr(ctx, s.pool, tx); err != nil {
			return "", err
		}
		return "", both(ctx, s.pool, tx) // want `txpool: pool.Exec \(in both\) is not part of the transaction`
	})
}
