package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// OpenPosition takes the place of a consumer in a partition for the caller. It waits up to ten seconds for a
// transaction in flight on the row, and is [once.ErrConflict] then.
func (s *Store) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	err = s.inTx(ctx, func(ctx context.Context, q client) error {
		p, err = s.consumers.Open(ctx, q, consumer, partition)
		return err
	})
	return p, err
}

// SetPosition writes a row whoever has it open. It waits as OpenPosition does.
func (s *Store) SetPosition(ctx context.Context, p store.Position) error {
	return s.inTx(ctx, func(ctx context.Context, q client) error {
		return s.consumers.Set(ctx, q, p)
	})
}

// Positions returns the rows of a consumer, in the order of their partitions.
func (s *Store) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	all, err := s.consumers.Positions(ctx, client{s.pool}, consumer)
	return all, explain(err)
}

// TransactAt moves a position and runs body in one transaction. BEGIN and the move are one round trip, COMMIT is
// another. The isolation level is that of Options.Isolation, and body is as free as that of Transact. It waits about
// ten seconds for a transaction in flight on the row, and is [once.ErrConflict] then.
func (s *Store) TransactAt(ctx context.Context, from, to store.Position, body func(pgx.Tx) error) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	move, args, err := s.consumers.Move(from, to)
	if err != nil {
		return explain(err)
	}
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return explain(err)
	}
	var tx *handle
	defer func() { tx.ring() }() // when the connection is free
	defer pooled.Release()       // closes a connection that could not leave its transaction
	conn := pooled.Conn()
	if tx, err = s.newHandle(ctx, conn); err != nil {
		return explain(err)
	}
	defer rollback(ctx, conn) // whatever way out is taken, a panic included; nothing after a commit
	defer tx.end()

	moved, err := s.move(ctx, conn, move, args)
	switch {
	case err != nil:
		return err
	case !moved:
		return explain(s.consumers.Stands(ctx, client{conn}, from, to))
	}
	if _, err := noticing(ctx, tx, func() (struct{}, error) { return struct{}{}, body(tx) }); err != nil {
		if tx.left {
			err = fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
		}
		return conflict(err)
	}
	b := new(pgx.Batch)
	if tx.raw {
		b.Queue(s.sql.stillMoved, s.consumers.Row(to))
	}
	return tx.commit(ctx, b)
}

// move sends BEGIN and the statement that moves a position, and reports whether there was a row to move.
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

// secondOf is how many rows the second of two statements has changed.
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
