package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// layout is how the tables are made, and known again.
type layout interface {
	Migrate(ctx context.Context, x sqlschema.Executor) error
	Check(ctx context.Context, x sqlschema.Executor) error
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

// Schema returns the SQL that [Store.Migrate] would run on tables of the version from, 0 for none: for those
// whose databases are changed by hand. Only names that New would refuse are an error.
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

// Migrate makes the tables, or leads them to the version that this build needs, in one transaction; where they are
// right, it changes nothing. Any number of processes may call it at once, for example at their start.
// [once.ErrInvalid]: the tables are of a newer build that this one cannot work with.
func (s *Store) Migrate(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	if err := s.migrate(ctx); err != nil || s.partition == nil {
		return explain(err)
	}
	_, err := s.rotateIfDue(ctx)
	return err
}

func (s *Store) migrate(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes one that is still in the transaction
	return s.layout.Migrate(ctx, executor{conn})
}

// ready checks the tables at the first use, by way of what is at hand: it may be the only connection.
func (s *Store) ready(ctx context.Context, q querier) error {
	if s.invalid != nil || s.checked.Load() {
		return s.invalid
	}
	err := s.layout.Check(ctx, executor{q})
	if err == nil {
		err = s.names.CheckSession(ctx, executor{q})
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

// executor is a querier as package sqlschema takes it.
type executor struct{ querier }

func (x executor) Exec(ctx context.Context, statement string) error {
	_, err := x.querier.Exec(ctx, statement)
	return err
}

func (x executor) Number(ctx context.Context, query string) (n int64, err error) {
	err = x.QueryRow(ctx, query).Scan(&n)
	return n, err
}
