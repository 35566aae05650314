package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// rowLog is the log of a database that has the messages of an outbox: they are in the
// table only when a relay has set them aside. One reader at a time has it.
type rowLog struct {
	table *memstore.Store
	stuck func(ids []string)

	mu      sync.Mutex
	pending map[*memstore.Tx][]broker.Message
	rows    []store.Outgoing
	done    map[uint64]bool // by place
	reader  *rowTail        // nil: nobody
	wake    chan struct{}
}

// newRowLog has a world put its messages into a log.
func (m *mail) newRowLog() *rowLog {
	l := &rowLog{table: m.store.Store, stuck: m.areStuck, pending: make(map[*memstore.Tx][]broker.Message),
		done: make(map[uint64]bool), wake: make(chan struct{}, 1)}
	committed := m.store.Committed
	m.store.Committed = func(tx *memstore.Tx) {
		committed(tx)
		l.committed(tx)
	}
	return l
}

// put writes a message when a transaction commits.
func (l *rowLog) put(tx *memstore.Tx, m *broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[tx] = append(l.pending[tx], *m)
}

func (l *rowLog) committed(tx *memstore.Tx) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.pending[tx] {
		l.rows = append(l.rows, store.Outgoing{Message: m, Lane: store.Lane(&m), LogPlace: uint64(len(l.rows) + 1)})
	}
	delete(l.pending, tx)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// logged is a store as a relay sees it, with a log.
type logged struct {
	store.Relayable
	log *rowLog
	p   *sim.Process
}

var _ store.OutboxLog = (*logged)(nil)

// LogsRows reports that messages in the table do not come from the log.
func (s *logged) LogsRows() bool { return false }

// TailOutbox begins behind the last message of which all before it are done.
func (s *logged) TailOutbox(ctx context.Context) (store.OutboxTail, error) {
	t := &rowTail{rowLog: s.log, p: s.p}
	err := sim.Do(ctx, s.p, sim.StoreRead("TailOutbox", ""), func(context.Context) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.reader != nil {
			return fmt.Errorf("%w: somebody reads", once.ErrConflict)
		}
		t.reader = t
		for t.next < len(t.rows) && t.done[t.rows[t.next].LogPlace] {
			t.next++
		}
		return nil
	})
	if err != nil {
		t.free()
		return nil, err
	}
	s.p.OnDeath(t.free)
	return t, nil
}

type rowTail struct {
	*rowLog
	p    *sim.Process
	next int
}

func (t *rowTail) free() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reader == t {
		t.reader = nil
	}
}

func (t *rowTail) Close(context.Context) error {
	t.free()
	return nil
}

func (t *rowTail) Receive(ctx context.Context, limit int) ([]store.Outgoing, error) {
	for {
		t.mu.Lock()
		ms := slices.Clone(t.rows[t.next:min(t.next+limit, len(t.rows))])
		t.mu.Unlock()
		if len(ms) > 0 {
			err := sim.Do(ctx, t.p, sim.StorePoll("ReadLog", ""), func(context.Context) error { return nil })
			if err != nil {
				return nil, err
			}
			t.next += len(ms)
			return ms, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.wake:
		}
	}
}

func (t *rowTail) Sent(ctx context.Context, ms []store.Outgoing, _ store.Ending) error {
	ms = slices.Clone(ms)
	return sim.Do(ctx, t.p, sim.StoreWrite("Sent", rowsText(ms)), func(context.Context) error {
		t.end(ms)
		return nil
	})
}

func (t *rowTail) SetAside(ctx context.Context, ms []store.Outgoing) error {
	ms = slices.Clone(ms)
	return sim.Do(ctx, t.p, sim.StoreWrite("SetAside", rowsText(ms)), func(ctx context.Context) error { return t.setAside(ctx, ms) })
}

func (t *rowTail) setAside(ctx context.Context, ms []store.Outgoing) error {
	tx, put := t.table.Begin(), slices.Clone(ms)
	for i := range put {
		put[i].Delay = time.Hour // so that no relay takes it before it has its state
	}
	if err := errors.Join(t.table.PutTx(ctx, tx, put), tx.Commit()); err != nil {
		return err
	}
	for _, m := range ms { // which takes no time
		rows, err := t.table.Outgoing(ctx, store.OutgoingQuery{State: store.Delayed, IDs: []string{m.Message.ID}})
		if err != nil {
			return err
		}
		rows[0].Attempts, rows[0].Reason = m.Attempts, m.Reason
		if _, err := t.table.MoveOutgoing(ctx, [16]byte{}, rows, m.State); err != nil {
			return err
		}
		if m.State == store.Stuck {
			t.stuck([]string{m.Message.ID})
		}
	}
	t.end(ms)
	return nil
}

func (t *rowTail) end(ms []store.Outgoing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range ms {
		t.done[m.LogPlace] = true
	}
}

func rowsText(ms []store.Outgoing) (text string) {
	for _, m := range ms {
		text += m.Message.ID + " "
	}
	return text
}
