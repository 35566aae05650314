package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// consumers are the tables of what is kept for consumers.
type consumers = consuming.Tables

// client is a querier as package consuming takes it.
type client struct{ querier }

func (c client) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := c.querier.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (c client) Query(ctx context.Context, statement string, args ...any) (consuming.Rows, error) {
	return c.querier.Query(ctx, statement, args...)
}

// inTx runs a short transaction of the store's own. It waits for others as long as for the end of one.
func (s *Store) inTx(ctx context.Context, do func(context.Context, client) error) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	return s.within(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, do) // to see what it has waited for
}

// within runs a transaction.
func (s *Store) within(ctx context.Context, how pgx.TxOptions, do func(context.Context, client) error) error {
	limited, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	tx, err := s.pool.BeginTx(limited, how)
	if err != nil {
		return explain(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := do(limited, client{tx}); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return waited(err)
		}
		return explain(err)
	}
	return explain(tx.Commit(limited))
}

// waited is the error of what was given up because another transaction was in the way too long.
func waited(err error) error {
	if errors.Is(err, once.ErrConflict) {
		return err
	}
	return fmt.Errorf("%w: it waited %v for another transaction: %w", once.ErrConflict, endTime, err)
}

// Register writes down that a consumer is at work now, and returns what was known of it before.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	err = s.inTx(ctx, func(ctx context.Context, q client) error {
		before, err = s.consumers.Register(ctx, q, c)
		return err
	})
	return before, err
}

// Consumers returns all that are registered, in the order of their names.
func (s *Store) Consumers(ctx context.Context) ([]store.Consumer, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	all, err := s.consumers.Consumers(ctx, client{s.pool})
	return all, explain(err)
}
