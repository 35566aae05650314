package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/consuming"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/jackc/pgx/v5"
)

// share makes the features that all SQL stores share.
func (s *Store) share() {
	s.consumers, s.outbox, s.shared = consuming.NewTables(s.names), newOutbox(s.names), records.New(s.names)
	db := access{s}
	s.Registry = consuming.NewRegistry(s.consumers, db)
	s.PositionTable = consuming.NewPositionTable(s.consumers, db)
	s.Shelf = consuming.NewShelf(s.consumers, db)
	s.HandingOver = publishing.NewHandingOver(s.outbox, db, s.shelve)
	s.Outbox = publishing.NewOutbox(s.outbox, db)
}

// access implements [sqlschema.TxAccess], for the features that all SQL stores
// share.
type access struct{ *Store }

var _ sqlschema.TxAccess[pgx.Tx] = access{}

func (a access) Read(ctx context.Context, do func(sqlschema.Querier) error) error {
	if err := a.ready(ctx, a.pool); err != nil {
		return err
	}
	return explain(do(client{a.pool}))
}

func (a access) Write(ctx context.Context, do func(sqlschema.Querier) error) error {
	return a.Read(ctx, do)
}

func (a access) InTx(ctx context.Context, tx pgx.Tx, do func(sqlschema.Querier) error) error {
	if err := a.readyTx(ctx, tx); err != nil {
		return err
	}
	return explain(do(client{tx}))
}

// Transact sends BEGIN and begin in one round trip.
func (a access) Transact(ctx context.Context, begin string,
	do func(context.Context, sqlschema.Querier) error) error {

	if err := a.ready(ctx, a.pool); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	options := pgx.TxOptions{BeginQuery: "begin isolation level read committed"}
	if begin != "" {
		options.BeginQuery += "; " + begin
	}
	tx, err := a.pool.BeginTx(limited, options)
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

// waited is the error of a statement that was canceled because another
// transaction was in the way for too long.
func waited(err error) error {
	if errors.Is(err, once.ErrConflict) {
		return err
	}
	return fmt.Errorf("%w: it waited %v for another transaction: %w", once.ErrConflict, endTime, err)
}

// client makes a querier a [sqlschema.Querier].
type client struct{ querier }

func (c client) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := c.querier.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (c client) Query(ctx context.Context, query string, args ...any) (sqlschema.Rows, error) {
	return c.querier.Query(ctx, query, args...)
}
