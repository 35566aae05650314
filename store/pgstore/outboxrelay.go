package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once/internal/sqlschema/publishing"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// Outgoing returns committed messages. What relays ask for takes one round trip, and reads by the index only.
func (s *Store) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	if q.Unlogged && s.log.mode != OutboxTable {
		return nil, nil
	}
	if !publishing.Hot(q) {
		page, err := s.outbox.Outgoing(ctx, client{s.pool}, q)
		if err != nil || !q.Unlogged {
			return page, explain(err)
		}
		if logged, err := s.isLogged(ctx, s.pool); err != nil || logged {
			return nil, err
		}
		return page, nil
	}
	page, err := s.hotPage(ctx, q, s.outbox.Light(q))
	if errors.Is(err, publishing.ErrHeavy) {
		page, err = s.hotPage(ctx, q, false)
	}
	return page, err
}

func (s *Store) hotPage(ctx context.Context, q store.OutgoingQuery, light bool) (page []store.Outgoing, err error) {
	call, err := s.outbox.OutgoingCall(q, light)
	if err != nil {
		return nil, explain(err)
	}
	calls := []publishing.Call{call}
	if q.Unlogged {
		calls = append(calls, publishing.Call{Text: `SELECT ` + markedSQL, Args: []any{s.names.Outbox()}})
	}
	var heavy error
	var logged bool
	read := 0
	err = s.inOneTrip(ctx, s.outbox.Plans(), calls, func(replies pgx.BatchResults) error {
		if read++; read > 1 {
			return replies.QueryRow().Scan(&logged)
		}
		rows, err := replies.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		page, err = s.outbox.ReadOutgoing(rows, q, light)
		if errors.Is(err, publishing.ErrHeavy) {
			heavy = err
			return nil
		}
		return err
	})
	if q.Unlogged && err == nil {
		if s.log.logged.Store(logged); logged {
			return nil, nil
		}
	}
	return page, cmp.Or(err, heavy)
}

// Sent ends messages that were published, in one round trip whose commit waits for no disk.
func (s *Store) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	changed, err = s.endOutgoing(ctx, relay, ms, then)
	if err != nil || changed == len(ms) || ms[0].Hint == 0 {
		return changed, err
	}
	// Some rows are not where they were: somebody has touched them, and they may still be in the same state.
	bare := slices.Clone(ms)
	for i := range bare {
		bare[i].Hint = 0
	}
	more, err := s.endOutgoing(ctx, relay, bare, then)
	return changed + more, err
}

func (s *Store) endOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	calls, err := s.outbox.SentCalls(relay, ms, then)
	if err != nil || len(calls) == 0 {
		return 0, explain(err)
	}
	err = s.inOneTrip(ctx, s.outbox.Settings(), calls, func(replies pgx.BatchResults) error {
		tag, err := replies.Exec()
		changed += int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return changed, nil
}

// inOneTrip sends a transaction, and calls read for the reply to each call.
func (s *Store) inOneTrip(ctx context.Context, settings string, calls []publishing.Call,
	read func(pgx.BatchResults) error) error {

	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return explain(err)
	}
	defer pooled.Release() // closes a connection that could not leave its transaction
	conn := pooled.Conn()
	defer rollback(ctx, conn) // nothing after a commit

	b := new(pgx.Batch)
	b.Queue("begin")
	b.Queue(settings)
	queueCalls(b, calls)
	b.Queue("commit")
	replies := conn.SendBatch(ctx, b)
	err = readTrip(replies, len(calls), read)
	if ended := replies.Close(); err == nil {
		err = ended
	}
	return explain(err)
}

func readTrip(replies pgx.BatchResults, calls int, read func(pgx.BatchResults) error) error {
	for range 2 {
		if _, err := replies.Exec(); err != nil {
			return err
		}
	}
	for range calls {
		if err := read(replies); err != nil {
			return err
		}
	}
	_, err := replies.Exec()
	return err
}

// inOutboxTx runs a short transaction of the store's own on the outbox.
func (s *Store) inOutboxTx(ctx context.Context, do func(context.Context, client) error) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	begin := "begin isolation level read committed; " + s.outbox.Plans() // one round trip
	return s.within(ctx, pgx.TxOptions{BeginQuery: begin}, do)
}

// LeaseLanes is the sign of life of a relay.
func (s *Store) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration,
	lanes []int) (all store.Leases, err error) {

	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) error {
		all, err = s.outbox.Lease(ctx, q, relay, ttl, lanes)
		return err
	})
	return all, err
}

// ReleaseLanes makes lanes of a relay nobody's.
func (s *Store) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	return s.inOutboxTx(ctx, func(ctx context.Context, q client) error {
		return s.outbox.Release(ctx, q, relay, lanes)
	})
}

// MoveOutgoing gives messages another state.
func (s *Store) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (changed int, err error) {

	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		changed, err = s.outbox.Move(ctx, q, relay, ms, to)
		return err
	})
	return changed, err
}

// WakeDelayed gives another state to messages that are due.
func (s *Store) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		if woken, next, err = s.outbox.Wake(ctx, q, relay, to, limit); err != nil || to != store.Pending || woken == 0 {
			return err
		}
		// This comes after the change: who begins to read the log later waits for this transaction, and sees the rows.
		if logged, err := s.isLogged(ctx, q.querier); err != nil || logged {
			return cmp.Or(err, errLogged)
		}
		return nil
	})
	if errors.Is(err, errLogged) {
		return 0, 0, nil
	}
	return woken, next, err
}

// errLogged undoes a change that is not to be made while pending rows come out of the log.
var errLogged = errors.New("once: pending rows come out of the log")

// RemoveOutgoing deletes messages.
func (s *Store) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (changed int, err error) {
	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		changed, err = s.outbox.Remove(ctx, q, relay, ms)
		return err
	})
	return changed, err
}

// ForgetOutgoing deletes messages that were published and kept, in one statement.
func (s *Store) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (n int, err error) {
	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		n, err = s.outbox.Forget(ctx, q, keep, limit)
		return err
	})
	return n, err
}

// ForgetArchived deletes messages from the archive, in one statement.
func (s *Store) ForgetArchived(ctx context.Context, keep time.Duration, limit int) (n int, err error) {
	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		n, err = s.outbox.ForgetArchived(ctx, q, keep, limit)
		return err
	})
	return n, err
}

// OutboxDepth tells how much there is in each state.
func (s *Store) OutboxDepth(ctx context.Context, count int) (all []store.Depth, err error) {
	err = s.inOutboxTx(ctx, func(ctx context.Context, q client) (err error) {
		all, err = s.outbox.Depth(ctx, q, count)
		return err
	})
	return all, err
}
