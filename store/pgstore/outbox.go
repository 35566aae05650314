package pgstore

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/publishing"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// outbox is the tables of messages on their way out.
type outbox = publishing.Tables

func newOutbox(n sqlschema.Names) *outbox {
	o := publishing.New(n)
	o.UsePlaces(func() publishing.Place { return new(rowPlace) })
	return o
}

// rowPlace is where a row is. An update moves it.
type rowPlace struct{ pgtype.TID }

// Hint is never 0: the rows of a page are counted from 1.
func (p *rowPlace) Hint() uint64 { return uint64(p.BlockNumber)<<16 | uint64(p.OffsetNumber) }

// PutTx writes messages inside a transaction. In one of [once.DoTx], Transact or TransactAt they travel with COMMIT
// and cost no round trip; what is wrong with them is an error here all the same. They are sent earlier, as one
// statement, if the handler begins a savepoint, asks for Conn or names their table, and from then on at once. In a
// transaction of the caller's own they are sent at once, whatever kind of pgx.Tx it is. Relays are told when they can
// be there; in the caller's own that is a guess, so a transaction that commits later is found when relays look again
// by themselves.
func (s *Store) PutTx(ctx context.Context, tx pgx.Tx, ms []store.Outgoing) error {
	if tx == nil && s.invalid == nil {
		return fmt.Errorf("%w: the transaction is nil", once.ErrInvalid)
	}
	h := handleOf(tx)
	if h != nil && h.isOver() {
		return pgx.ErrTxClosed
	}
	names, err := s.readyToPut(ctx, tx)
	if err != nil || len(ms) == 0 {
		return err
	}
	if h != nil && h.store == s {
		h.puts.any = true
		return h.put(ctx, tx, names, ms)
	}
	if err := s.putNow(ctx, tx, names, ms); err != nil {
		return err
	}
	s.bell.ring(false)
	return nil
}

func (s *Store) putNow(ctx context.Context, tx pgx.Tx, names logNames, ms []store.Outgoing) error {
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

// QueueOutbox queues in a batch of the caller's what PutTx would send, so that it costs no round trip of its own. The
// batch has to be sent in the transaction of the rows that the messages announce, or be it, from its BEGIN on; and it
// has to be sent soon, because relays are told at once, and some milliseconds later. Each message needs an ID. That the
// tables are there is not looked at. The messages are the store's until the batch was sent. With OutboxLogOnly, a PutTx
// has to come first.
//
// Unlike PutTx, which package outbox calls, it seals the messages if Options.Sealing says so.
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
	s.bell.ring(false)
	return nil
}

// putCalls are the statements that put messages: one, or two if some go to the log and some to the table; more if they are
// large.
func (s *Store) putCalls(names logNames, ms []store.Outgoing) (calls []publishing.Call, err error) {
	rows := ms
	if s.log.mode == OutboxLogOnly {
		var now []store.Outgoing
		if now, rows, err = undelayed(ms); err != nil {
			return nil, err
		}
		for some := range parts(now) {
			text, args, err := emitStatement(names, some)
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

// statementBytes is how much goes into one statement. PostgreSQL has no room for more than a gigabyte.
const statementBytes = 16 << 20

// parts divides messages among statements. A message is in one of them, however large it is.
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

// fewRows is how many rows are cheaper as values than as arrays.
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

// undelayed tells messages that can be written to the log from those that have to wait in the table.
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

// readyToPut returns what putCalls needs to know where messages go to the log. While rows are open, nothing can be
// asked: that the tables are missing is found at the end.
func (s *Store) readyToPut(ctx context.Context, tx pgx.Tx) (names logNames, err error) {
	if h := handleOf(tx); h != nil && h.isBusy() {
		return s.knownPutNames()
	}
	if err := s.ready(ctx, tx); err != nil || s.log.mode != OutboxLogOnly {
		return names, err
	}
	return s.emitReady(ctx, tx)
}

// knownPutNames are those of the last look.
func (s *Store) knownPutNames() (logNames, error) {
	if s.log.mode != OutboxLogOnly {
		return logNames{}, nil
	}
	known := s.log.emits.Load()
	if known == nil {
		return logNames{}, fmt.Errorf("%w: with OutboxLogOnly, call PutTx at least once before QueueOutbox, "+
			"which cannot ask whether somebody reads the log", once.ErrInvalid)
	}
	return known.names, nil
}
