package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
	"github.com/effectively-once/once/store"
)

// consumers are the tables of what is kept for consumers.
type consumers = consuming.Tables

// querier is a sqltx.Querier as package consuming takes it.
type querier struct{ sqltx.Querier }

func (q querier) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (q querier) Query(ctx context.Context, statement string, args ...any) (consuming.Rows, error) {
	found, err := q.QueryContext(ctx, statement, args...)
	return rows{found}, err
}

type rows struct{ *sql.Rows }

func (r rows) Close() { _ = r.Rows.Close() } // Err has said what went wrong

// inTx runs a short transaction of the store's own. It waits for others as long as for the end of one.
func (s *Store) inTx(ctx context.Context, do func(context.Context, querier) error) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	limited, cancel := context.WithTimeout(ctx, sqltx.EndTime)
	defer cancel()
	tx, err := s.db.BeginTx(limited, nil)
	if err != nil {
		return s.fail(err)
	}
	defer tx.Rollback()
	if err := do(limited, querier{tx}); err != nil {
		return s.waited(ctx, limited, err)
	}
	return s.fail(tx.Commit())
}

// waited marks the error of what was given up because another transaction was in the way too long.
func (s *Store) waited(ctx, limited context.Context, err error) error {
	if ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, once.ErrConflict) {
		return fmt.Errorf("%w: it waited %v for another transaction: %w", once.ErrConflict, sqltx.EndTime, err)
	}
	return s.fail(err)
}

// Register writes down that a consumer is at work now, and returns what was known of it before.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	err = s.inTx(ctx, func(ctx context.Context, q querier) error {
		before, err = s.consumers.Register(ctx, q, c)
		return err
	})
	return before, err
}

// Consumers returns all that are registered, in the order of their names.
func (s *Store) Consumers(ctx context.Context) ([]store.Consumer, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	all, err := s.consumers.Consumers(ctx, querier{s.db})
	return all, s.fail(err)
}
