package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// logBacklog are the rows that were pending when the slot was made, as one snapshot shows them.
type logBacklog struct {
	from uint64 // commits before this place of the log are in the snapshot, and no others

	mu    sync.Mutex
	tx    pgx.Tx // nil: all of it was read, or nothing had to be
	lane  int
	after int64
}

// openBacklog takes a snapshot that ends at a place of the log, unless nothing is pending that the log does not have. Only
// a new slot comes with such a snapshot, so a temporary one is made, which is never older than that of the reader.
func (t *logTail) openBacklog(ctx context.Context) error {
	if t.mark.Settled || t.store.log.mode != OutboxRowsByLog {
		return nil
	}
	temporary := t.names.slot + "_b"
	row, err := t.conn.query(ctx, `CREATE_REPLICATION_SLOT `+temporary+` TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT`)
	if err != nil {
		return err
	}
	if len(row) < 3 {
		return errors.New("once: PostgreSQL exported no snapshot")
	}
	if t.backlog.from, err = parsePosition(string(row[1])); err != nil {
		return err
	}
	t.backlog.tx, err = t.store.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.backlog.tx = nil
		return err
	}
	if _, err := t.backlog.tx.Exec(ctx, fmt.Sprintf(`SET TRANSACTION SNAPSHOT '%s'`, row[2])); err != nil {
		return err
	}
	if _, err := t.backlog.tx.Exec(ctx, t.store.outbox.Settings()); err != nil {
		return err
	}
	// It is idle for as long as a page takes to be published.
	if _, err := t.backlog.tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return err
	}
	_, err = t.conn.query(ctx, `DROP_REPLICATION_SLOT `+temporary)
	return err
}

// readBacklog returns the next of the backlog, lane by lane. It returns none when there is none.
func (t *logTail) readBacklog(ctx context.Context, most int) (ms []store.Outgoing, err error) {
	l := &t.backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tx == nil {
		return nil, nil
	}
	// The context of one call must not break what the next one needs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	for ; l.lane < store.Lanes && len(ms) == 0; l.next(len(ms)) {
		q := store.OutgoingQuery{Lanes: []int{l.lane}, After: l.after, Limit: min(most, 10_000), MostBytes: mostQueued}
		if ms, err = t.store.outbox.Outgoing(ctx, client{l.tx}, outboxQuery(q)); err != nil {
			return nil, t.fail(err)
		}
	}
	if len(ms) == 0 {
		_ = l.tx.Rollback(ctx) // it has written nothing
		l.tx = nil
		t.mu.Lock()
		t.track.whole = true
		t.mu.Unlock()
		if err := t.settle(ctx); err != nil {
			return nil, t.fail(err)
		}
		return nil, nil
	}
	l.after = ms[len(ms)-1].Seq
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range ms {
		t.track.messages[keyOf(&ms[i])] = delivered{}
	}
	t.track.backlog += len(ms)
	return ms, nil
}

// next goes on to the next lane, unless there was something in this one.
func (l *logBacklog) next(found int) {
	if found == 0 {
		l.lane, l.after = l.lane+1, 0
	}
}

func (t *logTail) closeBacklog() {
	l := &t.backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = l.tx.Rollback(ctx)
	l.tx = nil
}

// settle writes down that the backlog was dealt with, if it was. The ends of its rows are on the disk with that.
func (t *logTail) settle(ctx context.Context) error {
	t.marking.Lock()
	defer t.marking.Unlock()
	t.mu.Lock()
	settled := t.track.whole && t.track.backlog == 0
	t.mu.Unlock()
	if !settled || t.mark.Settled {
		return nil
	}
	mark := t.mark
	mark.Settled = true
	return t.writeMark(ctx, mark)
}
