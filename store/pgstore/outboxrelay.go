package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/jackc/pgx/v5"
)

// Outgoing returns committed messages. The queries of relays take one round
// trip and read only along the index.
func (s *Store) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	if q.Unlogged && !s.log.TableOnly() {
		return nil, nil
	}
	if !publishing.Hot(q) {
		page, err := s.outbox.Outgoing(ctx, client{s.pool}, q)
		if err != nil || !q.Unlogged {
			return page, explain(err)
		}
		if logged, err := s.log.CheckInUse(ctx, s.pool); err != nil || logged {
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

// hotPage runs a query of a relay in one round trip.
func (s *Store) hotPage(ctx context.Context, q store.OutgoingQuery, light bool) (page []store.Outgoing, err error) {
	call, err := s.outbox.OutgoingCall(q, light)
	if err != nil {
		return nil, explain(err)
	}
	calls := []publishing.Call{call}
	if q.Unlogged {
		text, args := s.log.InUseQuery()
		calls = append(calls, publishing.Call{Text: text, Args: args})
	}
	h := hotReply{tables: s.outbox, query: q, light: light}
	err = s.inOneTrip(ctx, s.outbox.Plans(), calls, h.read)
	if err == nil && q.Unlogged {
		s.log.SetInUse(h.logged)
		if h.logged {
			return nil, nil
		}
	}
	if err == nil && h.heavy {
		err = publishing.ErrHeavy
	}
	return h.page, err
}

// hotReply reads the replies to a hot query: the page, and whether rows come
// out of the log, if that was asked.
type hotReply struct {
	tables *publishing.Tables
	query  store.OutgoingQuery
	light  bool

	page   []store.Outgoing
	heavy  bool // a light query found a large body
	logged bool
}

func (h *hotReply) read(call int, replies pgx.BatchResults) error {
	if call > 0 {
		return replies.QueryRow().Scan(&h.logged)
	}
	rows, err := replies.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	h.page, err = h.tables.ReadOutgoing(rows, h.query, h.light)
	if h.heavy = errors.Is(err, publishing.ErrHeavy); h.heavy {
		return nil
	}
	return err
}

// DecidedOutgoing returns the messages that people made held or stuck lately, in
// one round trip.
func (s *Store) DecidedOutgoing(ctx context.Context, onlyStuck bool) (ms []store.Outgoing, err error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	calls := []publishing.Call{s.outbox.DecidedCall(onlyStuck)}
	err = s.inOneTrip(ctx, s.outbox.Plans(), calls, func(_ int, replies pgx.BatchResults) error {
		rows, err := replies.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		ms, err = publishing.ReadDecided(rows)
		return err
	})
	return ms, err
}

// Sent ends messages that were published, in one round trip. Its commit does
// not wait for the disk.
func (s *Store) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	changed, err = s.endOutgoing(ctx, relay, ms, then)
	if err != nil || changed == len(ms) || ms[0].Hint == 0 {
		return changed, err
	}
	// Somebody has updated some rows, which moved them. They may still be in
	// the same state.
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
	err = s.inOneTrip(ctx, s.outbox.Settings(), calls, func(_ int, replies pgx.BatchResults) error {
		tag, err := replies.Exec()
		changed += int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return changed, nil
}

// shelve puts messages on the shelf in one round trip, in a transaction of access.
func (s *Store) shelve(ctx context.Context, q sqlschema.Querier, ms []store.Shelved) error {
	statement, args, err := s.consumers.Shelving(ms)
	if err != nil || len(args) == 0 {
		return err
	}
	b := new(pgx.Batch)
	for _, of := range args {
		b.Queue(statement, of...)
	}
	return q.(client).SendBatch(ctx, b).Close()
}

// inOneTrip sends a transaction in one round trip, and calls read for the reply
// to each call.
func (s *Store) inOneTrip(ctx context.Context, settings string, calls []publishing.Call,
	read func(call int, replies pgx.BatchResults) error) error {

	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return explain(err)
	}
	defer pooled.Release() // closes a connection that is still in its transaction
	conn := pooled.Conn()
	defer rollback(ctx, conn) // does nothing after a commit

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

func readTrip(replies pgx.BatchResults, calls int, read func(call int, replies pgx.BatchResults) error) error {
	for range 2 {
		if _, err := replies.Exec(); err != nil {
			return err
		}
	}
	for call := range calls {
		if err := read(call, replies); err != nil {
			return err
		}
	}
	_, err := replies.Exec()
	return err
}

// WakeDelayed changes the state of delayed messages that are due. While pending
// rows come out of the log, it makes none of them pending.
func (s *Store) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	db := access{s}
	err = db.Transact(ctx, s.outbox.Plans(), func(ctx context.Context, q sqlschema.Querier) (err error) {
		if woken, next, err = s.outbox.Wake(ctx, q, relay, to, limit); err != nil || to != store.Pending || woken == 0 {
			return err
		}
		// The rows are changed by now: whoever begins to read the log after
		// this query waits for this transaction, and sees them.
		if logged, err := s.log.CheckInUse(ctx, q.(client).querier); err != nil || logged {
			return cmp.Or(err, errLogged)
		}
		return nil
	})
	if errors.Is(err, errLogged) {
		return 0, 0, nil
	}
	return woken, next, err
}

// errLogged rolls back a change that must not be made while pending rows come
// out of the log.
var errLogged = errors.New("once: pending rows come out of the log")
