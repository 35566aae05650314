package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/publishing"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
	"github.com/effectively-once/once/store"
)

// outbox are the tables of what is to be published.
type outbox = publishing.Tables

// PutTx writes messages inside a transaction of the caller's, at once. In [Store.Transact] and [Store.TransactAt]
// relays of this store hear of them after the commit; else before it, since nothing here sees the commit.
func (s *Store) PutTx(ctx context.Context, tx *sql.Tx, ms []store.Outgoing) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the *sql.Tx is nil", once.ErrInvalid)
	}
	if err := s.ready(ctx, tx); err != nil || len(ms) == 0 {
		return err
	}
	if err := s.outbox.Put(ctx, querier{tx}, ms); err != nil {
		return s.fail(err)
	}
	s.bell.put(tx)
	return nil
}

// inOutboxTx runs a short transaction of the store's own, whose statements see what those before them have waited for.
// In MySQL, nothing but READ COMMITTED keeps a relay from waiting for the transactions of producers.
func (s *Store) inOutboxTx(ctx context.Context, do func(context.Context, querier) error) error {
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
	options := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	if s.dialect == sqlschema.SQLite {
		options = nil
	}
	tx, err := s.db.BeginTx(limited, options)
	if err != nil {
		return s.fail(err)
	}
	defer tx.Rollback()
	if err := do(limited, querier{tx}); err != nil {
		return s.waited(ctx, limited, err)
	}
	return s.fail(tx.Commit())
}

// inSetTx is inOutboxTx with settings of the database: for its plans, or those of what need not be durable at once,
// too.
func (s *Store) inSetTx(ctx context.Context, settings func(*outbox) string,
	do func(context.Context, querier) error) error {

	return s.inOutboxTx(ctx, func(ctx context.Context, q querier) error {
		if statement := settings(s.outbox); statement != "" {
			if _, err := q.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return do(ctx, q)
	})
}

// aboutLanes is for what changes leases. If a relay vanishes in the middle of it, the others must not wait until the
// server notices: PostgreSQL ends such a transaction soon, SQLite is told by the operating system, and the others get
// statements that are no transaction.
func (s *Store) aboutLanes(ctx context.Context, do func(context.Context, querier) error) error {
	if s.dialect == sqlschema.PostgreSQL || s.dialect == sqlschema.SQLite {
		return s.inSetTx(ctx, (*outbox).Plans, do)
	}
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	return s.fail(do(ctx, querier{s.db}))
}

// LeaseLanes is a relay's sign of life. Relays that do this at the same time do it one after the other.
func (s *Store) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration,
	lanes []int) (all store.Leases, err error) {

	err = s.aboutLanes(ctx, func(ctx context.Context, q querier) error {
		all, err = s.outbox.Lease(ctx, q, relay, ttl, lanes)
		return err
	})
	if err != nil {
		return store.Leases{}, err
	}
	return all, nil
}

// ReleaseLanes makes lanes of a relay nobody's.
func (s *Store) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	return s.aboutLanes(ctx, func(ctx context.Context, q querier) error {
		return s.outbox.Release(ctx, q, relay, lanes)
	})
}

// Outgoing returns committed messages.
func (s *Store) Outgoing(ctx context.Context, q store.OutgoingQuery) (page []store.Outgoing, err error) {
	err = s.look(ctx, publishing.Hot(q), func(ctx context.Context, at querier) error {
		page, err = s.outbox.Outgoing(ctx, at, q)
		return err
	})
	return page, err
}

// look only reads. That takes no transaction where there is nothing to set for it: in SQLite, one might wait for a
// writer.
func (s *Store) look(ctx context.Context, planned bool, do func(context.Context, querier) error) error {
	if s.dialect == sqlschema.PostgreSQL && planned {
		return s.inSetTx(ctx, (*outbox).Plans, do)
	}
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	return s.fail(do(ctx, querier{s.db}))
}

// Sent ends messages that were published. In PostgreSQL it does not wait for the disk.
func (s *Store) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if s.dialect == sqlschema.MySQL {
		return s.sentAtOnce(ctx, relay, ms, then)
	}
	err = s.inSetTx(ctx, (*outbox).Settings, func(ctx context.Context, q querier) error {
		changed, err = s.outbox.Sent(ctx, q, relay, ms, then)
		return err
	})
	return changed, err
}

// sentAtOnce is Sent where the server does not end a transaction soon whose client has vanished: the next relay would
// wait for its rows. So each statement is one by itself, if it need not be with others.
func (s *Store) sentAtOnce(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if then == store.Archive {
		err = s.inOutboxTx(ctx, func(ctx context.Context, q querier) error {
			changed, err = s.outbox.Sent(ctx, q, relay, ms, then)
			return err
		})
		return changed, err
	}
	if err := s.ready(ctx, s.db); err != nil {
		return 0, err
	}
	calls, err := s.outbox.SentCalls(relay, ms, then)
	if err != nil {
		return 0, s.fail(err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return 0, s.fail(err)
	}
	defer conn.Close()
	for _, call := range calls {
		// For the next statement only. Nothing but READ COMMITTED keeps it from waiting for the transactions of producers.
		if _, err := conn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return changed, s.fail(err)
		}
		n, err := querier{conn}.Exec(ctx, call.Text, call.Args...)
		if changed += int(n); err != nil {
			return changed, s.fail(err)
		}
	}
	return changed, nil
}

// MoveOutgoing gives messages another state.
func (s *Store) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (changed int, err error) {

	err = s.inSetTx(ctx, (*outbox).Plans, func(ctx context.Context, q querier) error {
		changed, err = s.outbox.Move(ctx, q, relay, ms, to)
		return err
	})
	return changed, err
}

// WakeDelayed gives another state to messages that are due.
func (s *Store) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	err = s.inSetTx(ctx, (*outbox).Plans, func(ctx context.Context, q querier) error {
		woken, next, err = s.outbox.Wake(ctx, q, relay, to, limit)
		return err
	})
	return woken, next, err
}

// RemoveOutgoing deletes messages, whatever they are waiting for.
func (s *Store) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (changed int, err error) {
	err = s.inSetTx(ctx, (*outbox).Plans, func(ctx context.Context, q querier) error {
		changed, err = s.outbox.Remove(ctx, q, relay, ms)
		return err
	})
	return changed, err
}

// ForgetOutgoing deletes messages that were published and kept, longer ago than keep, in one statement.
func (s *Store) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	err = s.inSetTx(ctx, (*outbox).Plans, func(ctx context.Context, q querier) error {
		forgotten, err = s.outbox.Forget(ctx, q, keep, limit)
		return err
	})
	return forgotten, err
}

// ForgetArchived deletes messages from the archive, in one statement.
func (s *Store) ForgetArchived(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	err = s.inSetTx(ctx, (*outbox).Plans, func(ctx context.Context, q querier) error {
		forgotten, err = s.outbox.ForgetArchived(ctx, q, keep, limit)
		return err
	})
	return forgotten, err
}

// OutboxDepth counts up to count in each state, and beyond that takes the first rows of each lane for a sample.
func (s *Store) OutboxDepth(ctx context.Context, count int) (all []store.Depth, err error) {
	err = s.look(ctx, true, func(ctx context.Context, q querier) error {
		all, err = s.outbox.Depth(ctx, q, count)
		return err
	})
	return all, err
}
