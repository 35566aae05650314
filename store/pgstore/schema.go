package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// layout creates and checks the tables.
type layout interface {
	Migrate(ctx context.Context, q sqlschema.Querier) error
	Check(ctx context.Context, q sqlschema.Querier) error
	Print(from int) string
}

func layoutOf(n sqlschema.Names, o *Options) layout {
	if o.Partition > 0 {
		return n.Partitioned()
	}
	return n.Whole()
}

func names(o *Options) (sqlschema.Names, error) {
	n, err := sqlschema.For(sqlschema.PostgreSQL, o.Schema, o.Prefix)
	return n, explain(err)
}

// Schema returns the SQL that [Store.Migrate] would run on tables of the
// version from, or 0 for none. It is for databases that are changed by hand. It
// returns an error only for names that New would refuse.
func Schema(o *Options, from int) (string, error) {
	if o == nil {
		o = new(Options)
	}
	n, err := names(o)
	if err != nil {
		return "", err
	}
	return layoutOf(n, o).Print(from), nil
}

// Migrate creates the tables, or migrates them to the version that this build
// needs, in one transaction. It changes nothing if they have that version. Any
// number of processes may call it at once, for example when they start. The
// error is [once.ErrInvalid] if the tables belong to a newer build with which
// this one cannot work.
func (s *Store) Migrate(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	if err := s.migrate(ctx); err != nil {
		return explain(err)
	}
	return s.records.migrated(ctx)
}

func (s *Store) migrate(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes the connection if it is still in the transaction
	return s.layout.Migrate(ctx, client{conn})
}

// ready checks the tables at the first use. It uses the connection of the
// caller, which may be the only one of the pool.
func (s *Store) ready(ctx context.Context, q querier) error {
	if s.invalid != nil || s.checked.Load() {
		return s.invalid
	}
	err := s.layout.Check(ctx, client{q})
	if err == nil {
		err = s.names.CheckSession(ctx, client{q})
	}
	s.checked.Store(err == nil)
	return explain(err)
}

func (s *Store) readyTx(ctx context.Context, tx pgx.Tx) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the transaction is nil", once.ErrInvalid)
	}
	return s.ready(ctx, tx)
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}
