package publishing

import (
	"context"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// Outbox implements the methods of [store.Relayable] that need no more than a
// database, and [store.OutboxArchive]. SQL stores embed it.
type Outbox struct {
	tables *Tables
	db     sqlschema.Access
}

// NewOutbox returns the outbox of a store.
func NewOutbox(t *Tables, db sqlschema.Access) Outbox { return Outbox{t, db} }

// planned runs a transaction whose plans use the indexes.
func (o Outbox) planned(ctx context.Context, do func(context.Context, sqlschema.Querier) error) error {
	return o.db.Transact(ctx, o.tables.sql.plans, do)
}

// lease runs statements that change leases. If their relay disappears before
// they are committed, the other relays must not wait until the server notices.
// PostgreSQL soon ends such a transaction, and SQLite learns of it from the
// operating system. Elsewhere each statement is committed by itself.
func (o Outbox) lease(ctx context.Context, do func(context.Context, sqlschema.Querier) error) error {
	switch o.tables.sql.dialect {
	case sqlschema.PostgreSQL, sqlschema.SQLite:
		return o.planned(ctx, do)
	}
	return o.db.Read(ctx, func(q sqlschema.Querier) error { return do(ctx, q) })
}

// read runs a query without a transaction, unless its plan matters: in SQLite,
// a transaction may have to wait for a writer.
func (o Outbox) read(ctx context.Context, hot bool, do func(context.Context, sqlschema.Querier) error) error {
	if hot && o.tables.sql.dialect == sqlschema.PostgreSQL {
		return o.planned(ctx, do)
	}
	return o.db.Read(ctx, func(q sqlschema.Querier) error { return do(ctx, q) })
}

// LeaseLanes extends the life of a relay by ttl and leases lanes to it. Of
// several calls at the same time, each waits for those before it.
func (o Outbox) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration,
	lanes []int) (all store.Leases, err error) {

	err = o.lease(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		all, err = o.tables.Lease(ctx, q, relay, ttl, lanes)
		return err
	})
	if err != nil {
		return store.Leases{}, err
	}
	return all, nil
}

// ReleaseLanes ends the leases of a relay on lanes.
func (o Outbox) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	return o.lease(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		return o.tables.Release(ctx, q, relay, lanes)
	})
}

// Outgoing returns committed messages.
func (o Outbox) Outgoing(ctx context.Context, query store.OutgoingQuery) (page []store.Outgoing, err error) {
	err = o.read(ctx, Hot(query), func(ctx context.Context, q sqlschema.Querier) error {
		page, err = o.tables.Outgoing(ctx, q, query)
		return err
	})
	return page, err
}

// Sent ends messages that were published. In PostgreSQL, the commit does not
// wait for the disk.
func (o Outbox) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	err = o.db.Transact(ctx, o.tables.sql.settings, func(ctx context.Context, q sqlschema.Querier) error {
		changed, err = o.tables.Sent(ctx, q, relay, ms, then)
		return err
	})
	return changed, err
}

// MoveOutgoing changes the state of messages.
func (o Outbox) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (changed int, err error) {

	err = o.planned(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		changed, err = o.tables.Move(ctx, q, relay, ms, to)
		return err
	})
	return changed, err
}

// WakeDelayed changes the state of delayed messages that are due.
func (o Outbox) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	err = o.planned(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		woken, next, err = o.tables.Wake(ctx, q, relay, to, limit)
		return err
	})
	return woken, next, err
}

// RemoveOutgoing deletes messages, whatever their state.
func (o Outbox) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (changed int, err error) {
	err = o.planned(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		changed, err = o.tables.Remove(ctx, q, relay, ms)
		return err
	})
	return changed, err
}

// ForgetOutgoing deletes kept messages that were published longer ago than
// keep, at most limit of them, in one statement.
func (o Outbox) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	err = o.planned(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		forgotten, err = o.tables.Forget(ctx, q, keep, limit)
		return err
	})
	return forgotten, err
}

// ForgetArchived deletes messages that were archived longer ago than keep, at
// most limit of them, in one statement.
func (o Outbox) ForgetArchived(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	err = o.planned(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		forgotten, err = o.tables.ForgetArchived(ctx, q, keep, limit)
		return err
	})
	return forgotten, err
}

// DecidedOutgoing returns the messages that people made held or stuck lately.
func (o Outbox) DecidedOutgoing(ctx context.Context, onlyStuck bool) (ms []store.Outgoing, err error) {
	err = o.read(ctx, true, func(ctx context.Context, q sqlschema.Querier) error {
		c := o.tables.DecidedCall(onlyStuck)
		rows, err := q.Query(ctx, c.Text, c.Args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		ms, err = ReadDecided(rows)
		return err
	})
	return ms, err
}

// OutboxDepth counts the messages of each state. From count on, it estimates.
func (o Outbox) OutboxDepth(ctx context.Context, count int) (all []store.Depth, err error) {
	err = o.read(ctx, true, func(ctx context.Context, q sqlschema.Querier) error {
		all, err = o.tables.Depth(ctx, q, count)
		return err
	})
	return all, err
}
