package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/effectively-once/once/store"
)

// Shelve puts messages aside, in a transaction of its own.
func (s *Store) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.inTx(ctx, func(ctx context.Context, q querier) error {
		return s.consumers.Shelve(ctx, q, ms)
	})
}

// ShelveTx is Shelve in a transaction of the caller's.
func (s *Store) ShelveTx(ctx context.Context, tx *sql.Tx, ms []store.Shelved) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	return s.fail(s.consumers.Shelve(ctx, querier{tx}, ms))
}

// BlockedTx returns those of these ordering keys that have messages on the shelf. In MySQL it waits for transactions
// that are just putting some of them aside, and keeps others from it until this one ends.
func (s *Store) BlockedTx(ctx context.Context, tx *sql.Tx, consumer string, orderingKeys []string,
	parkedToo bool) ([]string, error) {

	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	blocked, err := s.consumers.Blocked(ctx, querier{tx}, consumer, orderingKeys, parkedToo)
	return blocked, s.fail(err)
}

// Shelved returns messages in the order in which they were put aside.
func (s *Store) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	page, err := s.consumers.Shelved(ctx, querier{s.db}, q)
	return page, s.fail(err)
}

// Change writes the state of a message, if its Version is still the one that it was read with.
func (s *Store) Change(ctx context.Context, m store.Shelved) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	end, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer end()
	return s.fail(s.consumers.Change(ctx, querier{s.db}, m))
}

// ChangeTx is Change in a transaction of the caller's.
func (s *Store) ChangeTx(ctx context.Context, tx *sql.Tx, m store.Shelved) error {
	if err := s.readyTx(ctx, tx); err != nil {
		return err
	}
	return s.fail(s.consumers.Change(ctx, querier{tx}, m))
}

// ForgetShelved deletes messages that wait for nothing and were last changed longer ago than keep, in one statement.
func (s *Store) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return 0, err
	}
	end, err := s.write(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	n, err := s.consumers.Forget(ctx, querier{s.db}, keep, limit)
	return n, s.fail(err)
}
