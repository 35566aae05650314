package pgstore

import (
	"context"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// Shelve puts messages aside, in a transaction of its own.
func (s *Store) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.inTx(ctx, func(ctx context.Context, q client) error {
		return s.consumers.Shelve(ctx, q, ms)
	})
}

// ShelveTx is Shelve in a transaction of the caller's.
func (s *Store) ShelveTx(ctx context.Context, tx pgx.Tx, ms []store.Shelved) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	return explain(s.consumers.Shelve(ctx, client{tx}, ms))
}

// BlockedTx returns those of these ordering keys that have messages on the shelf. A transaction that is REPEATABLE
// READ or SERIALIZABLE does not see what was committed after its snapshot.
func (s *Store) BlockedTx(ctx context.Context, tx pgx.Tx, consumer string, orderingKeys []string,
	parkedToo bool) ([]string, error) {

	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	blocked, err := s.consumers.Blocked(ctx, client{tx}, consumer, orderingKeys, parkedToo)
	return blocked, explain(err)
}

// Shelved returns messages in the order in which they were put aside.
func (s *Store) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	page, err := s.consumers.Shelved(ctx, client{s.pool}, q)
	return page, explain(err)
}

// Change writes the state of a message, if its Version is still the one that it was read with.
func (s *Store) Change(ctx context.Context, m store.Shelved) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	return explain(s.consumers.Change(ctx, client{s.pool}, m))
}

// ChangeTx is Change in a transaction of the caller's.
func (s *Store) ChangeTx(ctx context.Context, tx pgx.Tx, m store.Shelved) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	return explain(s.consumers.Change(ctx, client{tx}, m))
}

// ForgetShelved deletes messages that wait for nothing and were last changed longer ago than keep, in one statement.
func (s *Store) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	n, err := s.consumers.Forget(ctx, client{s.pool}, keep, limit)
	return n, explain(err)
}
