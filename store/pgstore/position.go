package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5"
)

// TransactAt moves a position and runs body in one transaction. BEGIN and the
// move take one round trip, COMMIT another. The isolation level is that of
// Options.Isolation. Body is as free as that of Transact. TransactAt waits
// about ten seconds for another transaction on the row, and then returns
// [once.ErrConflict].
func (s *Store) TransactAt(ctx context.Context, from, to store.Position, body func(pgx.Tx) error) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	move, args, err := s.consumers.Move(from, to)
	if err != nil {
		return explain(err)
	}
	tx, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer tx.release(ctx) // on every way out, a panic included

	moved, err := s.move(ctx, tx.conn, move, args)
	switch {
	case err != nil:
		return err
	case !moved:
		return explain(s.consumers.Stands(ctx, client{tx.conn}, from, to))
	}
	if err := tx.runAt(ctx, body); err != nil {
		if tx.use == connEnded {
			err = fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
		}
		return pgerr.Conflict(err)
	}
	b := new(pgx.Batch)
	if tx.use == connHandedOut {
		b.Queue(s.sql.stillMoved, s.consumers.Row(to))
	}
	return tx.commit(ctx, b)
}

// move sends BEGIN and the statement that moves a position, and reports whether
// it moved the row.
func (s *Store) move(ctx context.Context, conn *pgx.Conn, statement string, args []any) (bool, error) {
	b := new(pgx.Batch)
	b.Queue(s.begin)
	b.Queue(statement, args...)
	bound := limit(conn)
	changed, err := secondOf(conn.SendBatch(ctx, b))
	if cut := bound.end(); cut && err != nil && ctx.Err() == nil {
		return false, waited(err)
	}
	return changed == 1, explain(err)
}

// secondOf returns the number of rows that the second of two statements
// changed.
func secondOf(replies pgx.BatchResults) (changed int64, err error) {
	_, err = replies.Exec()
	if err == nil {
		tag, second := replies.Exec()
		changed, err = tag.RowsAffected(), second
	}
	if ended := replies.Close(); err == nil {
		err = ended
	}
	return changed, err
}
