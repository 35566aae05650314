package pgstore

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// newOutbox returns the statements on the outbox.
func newOutbox(n sqlschema.Names) *publishing.Tables {
	o := publishing.NewTables(n)
	o.UsePlaces(func() publishing.Place { return new(rowPlace) })
	return o
}

// rowPlace is the place of a row. An update moves the row.
type rowPlace struct{ pgtype.TID }

// Hint is never 0, since the rows of a disk page are counted from 1.
func (p *rowPlace) Hint() uint64 { return uint64(p.BlockNumber)<<16 | uint64(p.OffsetNumber) }

// PutTx writes messages inside a transaction. In a transaction of [once.DoTx],
// Transact or TransactAt, the messages are sent together with COMMIT and cost
// no round trip. PutTx itself returns the errors of invalid messages. If the
// handler begins a savepoint, calls Conn or names the table, the messages are
// sent before that as one statement, and later ones at once. In a transaction
// of the caller's, whatever kind of pgx.Tx it is, messages are sent at once.
//
// Relays are told after the commit. In a transaction of the caller's they are
// told at once, so they find the messages of a later commit only when they
// poll.
func (s *Store) PutTx(ctx context.Context, tx pgx.Tx, ms []store.Outgoing) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the transaction is nil", once.ErrInvalid)
	}
	h := handleOf(tx)
	if h != nil && h.isClosed() {
		return pgx.ErrTxClosed
	}
	names, err := s.readyToPut(ctx, tx)
	if err != nil || len(ms) == 0 {
		return err
	}
	if h != nil && h.store == s {
		return h.put(ctx, tx, names, ms)
	}
	if err := s.putNow(ctx, tx, names, ms); err != nil {
		return err
	}
	s.notifier.notify(false)
	return nil
}

func (s *Store) putNow(ctx context.Context, tx pgx.Tx, names outboxlog.Names, ms []store.Outgoing) error {
	calls, err := s.putCalls(names, ms)
	if err != nil {
		return err
	}
	for _, call := range calls {
		if _, err := tx.Exec(ctx, call.Text, call.Args...); err != nil {
			return explain(err)
		}
	}
	return nil
}

// QueueOutbox adds the statements of PutTx to a batch of the caller's, so that
// they cost no round trip. The caller must send the batch in the transaction of
// the rows that the messages announce. The batch may contain its BEGIN and
// COMMIT. Send it soon, because relays are told at once and again some
// milliseconds later. Do not change the messages before the batch was sent.
// Each message needs an ID. QueueOutbox does not check that the tables exist.
// With OutboxLogOnly, call PutTx at least once before.
//
// QueueOutbox seals the messages if Options.Sealing says so. PutTx does not,
// because package outbox has sealed them.
func (s *Store) QueueOutbox(b *pgx.Batch, ms []store.Outgoing) error {
	switch {
	case s.invalid != nil:
		return s.invalid
	case b == nil:
		return fmt.Errorf("%w: the batch is nil", once.ErrInvalid)
	case len(ms) == 0:
		return nil
	}
	names, err := s.knownPutNames()
	if err != nil {
		return err
	}
	sealing := &s.Options().Sealing
	if err := sealing.Validate(); err != nil {
		return err
	}
	if sealing.Seals(once.SealOutbox) {
		ms = slices.Clone(ms)
		for i := range ms {
			ms[i].Message = store.SealOutgoing(sealing, ms[i].Message)
		}
	}
	calls, err := s.putCalls(names, ms)
	if err != nil {
		return err
	}
	queueCalls(b, calls)
	s.notifier.notify(false)
	return nil
}

// putCalls returns the statements that put messages: one, or two if some go to
// the log and some to the table, or more if they are large.
func (s *Store) putCalls(names outboxlog.Names, ms []store.Outgoing) (calls []publishing.Call, err error) {
	rows := ms
	if s.log.LogOnly() {
		var now []store.Outgoing
		if now, rows, err = undelayed(ms); err != nil {
			return nil, err
		}
		for some := range parts(now) {
			text, args, err := outboxlog.EmitCall(names, some)
			if err != nil {
				return nil, err
			}
			calls = append(calls, publishing.Call{Text: text, Args: args})
		}
	}
	for some := range parts(rows) {
		more, err := s.rowCalls(some)
		if err != nil {
			return nil, err
		}
		calls = append(calls, more...)
	}
	return calls, nil
}

// statementBytes bounds the bodies in one statement. PostgreSQL allows no more
// than a gigabyte.
const statementBytes = 16 << 20

// parts divides messages among statements. It does not divide a message.
func parts(ms []store.Outgoing) iter.Seq[[]store.Outgoing] {
	return func(yield func([]store.Outgoing) bool) {
		for len(ms) > 0 {
			n, size := 1, len(ms[0].Message.Body)
			for ; n < len(ms) && size+len(ms[n].Message.Body) <= statementBytes; n++ {
				size += len(ms[n].Message.Body)
			}
			if !yield(ms[:n:n]) {
				return
			}
			ms = ms[n:]
		}
	}
}

// fewRows is the number of rows up to which values are cheaper than arrays.
const fewRows = 8

func (s *Store) rowCalls(rows []store.Outgoing) ([]publishing.Call, error) {
	if len(rows) <= fewRows {
		calls, err := s.outbox.PutCalls(rows)
		return calls, explain(err)
	}
	call, err := s.outbox.PutArrays(rows)
	if err != nil {
		return nil, explain(err)
	}
	return []publishing.Call{call}, nil
}

// undelayed separates messages for the log from delayed ones, which wait in the
// table.
func undelayed(ms []store.Outgoing) (now, rows []store.Outgoing, err error) {
	for _, m := range ms {
		if err := m.Message.Check(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
		if m.Delay > 0 {
			rows = append(rows, m)
		} else {
			now = append(now, m)
		}
	}
	return now, rows, nil
}

// readyToPut checks the tables, and returns what putCalls needs if messages go
// to the log. While rows are open, it cannot send a query. Then missing tables
// are found at the end.
func (s *Store) readyToPut(ctx context.Context, tx pgx.Tx) (names outboxlog.Names, err error) {
	if h := handleOf(tx); h != nil && h.isBusy() {
		return s.knownPutNames()
	}
	if err := s.ready(ctx, tx); err != nil || !s.log.LogOnly() {
		return names, err
	}
	return s.log.CheckReady(ctx, tx)
}

// knownPutNames returns the names that the last query found.
func (s *Store) knownPutNames() (outboxlog.Names, error) {
	if !s.log.LogOnly() {
		return outboxlog.Names{}, nil
	}
	names, ok := s.log.LastReady()
	if !ok {
		return names, fmt.Errorf("%w: with OutboxLogOnly, call PutTx at least once before QueueOutbox, "+
			"which cannot ask whether somebody reads the log", once.ErrInvalid)
	}
	return names, nil
}
