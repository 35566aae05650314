package sqlstore

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once/internal/sqlschema/sqltx"
	"github.com/effectively-once/once/store"
)

// OpenPosition takes the place of a consumer in a partition for the caller. It waits for a transaction in flight on the
// row, up to ten seconds or what the database allows, and is [once.ErrConflict] then.
func (s *Store) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	err = s.inTx(ctx, func(ctx context.Context, q querier) error {
		p, err = s.consumers.Open(ctx, q, consumer, partition)
		return err
	})
	return p, err
}

// SetPosition writes a row whoever has it open. It waits as OpenPosition does.
func (s *Store) SetPosition(ctx context.Context, p store.Position) error {
	return s.inTx(ctx, func(ctx context.Context, q querier) error {
		return s.consumers.Set(ctx, q, p)
	})
}

// Positions returns the rows of a consumer, in the order of their partitions.
func (s *Store) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	all, err := s.consumers.Positions(ctx, querier{s.db}, consumer)
	return all, s.fail(err)
}

// TransactAt moves a position and runs body in one transaction, which ends only here. What Transact says of body holds
// here, too. It waits for a transaction in flight on the row, up to ten seconds or what the database allows, and is
// [once.ErrConflict] then.
func (s *Store) TransactAt(ctx context.Context, from, to store.Position, body func(*sql.Tx) error) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	t, err := sqltx.Begin(ctx, s.db, s.dialect)
	if err != nil {
		return s.fail(err)
	}
	defer t.Rollback() // whatever way out is taken, a panic too; after the commit there is nothing left to do
	moved, err := s.mark(ctx, t.Tx, from, to)
	if err != nil || !moved {
		return err
	}
	committing := false
	s.bell.begun(t.Tx)
	defer func() { s.bell.ended(t.Tx, committing) }()
	if err := body(t.Tx); err != nil {
		return s.conflict(err)
	}
	if err := s.unmark(ctx, t.Tx, to); err != nil {
		return s.settleFailed(err)
	}
	committing = true
	if err := t.Commit(); err != nil {
		return s.commitFailed(err)
	}
	return nil
}

// mark moves a position, and reports false if it was there already. The row keeps a mark that only this transaction can
// see: so that nothing is committed by another, that the database silently began anew.
func (s *Store) mark(ctx context.Context, tx *sql.Tx, from, to store.Position) (moved bool, err error) {
	limited, cancel := context.WithTimeout(ctx, sqltx.EndTime)
	defer cancel()
	moved, err = s.consumers.Mark(limited, querier{tx}, from, to)
	if err == nil && !moved {
		err = s.consumers.Stands(limited, querier{tx}, from, to)
	}
	if err != nil {
		return false, s.waited(ctx, limited, err)
	}
	return moved, nil
}

func (s *Store) unmark(ctx context.Context, tx *sql.Tx, to store.Position) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	return s.fail(s.consumers.Unmark(ctx, querier{tx}, to))
}
