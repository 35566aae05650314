package outboxlog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// backlog are the pending rows that the slot does not deliver: those that were
// committed before it could. The snapshot of the mark shows them. They come
// before everything that the slot delivers.
type backlog struct {
	mu    sync.Mutex
	open  bool // there may be more
	lane  int
	after int64
}

// inSnapshotSQL is the condition that the snapshot of the mark shows a row. Its
// xmin has the low 32 bits of the number of its transaction. The high bits are
// those of the latest transaction, or one less: no row stays pending for 2^32
// transactions.
const inSnapshotSQL = `pg_visible_in_snapshot((SELECT CASE WHEN near < next THEN near ELSE near - 4294967296 END FROM (SELECT
	next, (next >> 32 << 32) | o.xmin::text::bigint AS near FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next)
	AS n) AS x)::text::xid8, $3::pg_snapshot)`

// readBacklog returns the next messages of the backlog, lane by lane, and none
// when it has returned all.
func (t *tail) readBacklog(ctx context.Context, limit int) (ms []store.Outgoing, err error) {
	l := &t.backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return nil, nil
	}
	// The end of this call's context must not break the tail.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	for l.lane < store.Lanes && len(ms) == 0 {
		q := store.OutgoingQuery{Lanes: []int{l.lane}, After: l.after, Limit: min(limit, 10_000), MaxBytes: maxQueued}
		page, err := t.log.rows.Outgoing(ctx, q)
		if err == nil {
			ms, err = t.inSnapshot(ctx, page)
		}
		if err != nil {
			return nil, t.fail(err)
		}
		if len(page) == 0 {
			l.lane, l.after = l.lane+1, 0
		} else {
			l.after = page[len(page)-1].Seq
		}
	}
	if len(ms) == 0 {
		l.open = false
		t.mu.Lock()
		t.progress.backlogRead = true
		t.mu.Unlock()
		if err := t.markSettled(ctx); err != nil {
			return nil, t.fail(err)
		}
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range ms {
		t.progress.messages[keyOf(&ms[i])] = delivery{}
	}
	t.progress.backlog += len(ms)
	return ms, nil
}

// inSnapshot returns the rows of a page of one lane that the snapshot of the
// mark shows. The slot delivers the others.
func (t *tail) inSnapshot(ctx context.Context, page []store.Outgoing) (ms []store.Outgoing, err error) {
	if len(page) == 0 {
		return nil, nil
	}
	seqs := make([]int64, len(page))
	for i := range page {
		seqs[i] = page[i].Seq
	}
	rows, err := t.log.pool.Query(ctx, `SELECT o.seq FROM `+t.names.table+` AS o
		WHERE o.lane = $1 AND o.state = 0 AND o.seq = ANY ($2::bigint[]) AND `+inSnapshotSQL, int16(page[0].Lane), seqs, t.mark.Snapshot)
	if err != nil {
		return nil, err
	}
	shown, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	set := make(map[int64]bool, len(shown))
	for _, seq := range shown {
		set[seq] = true
	}
	for i := range page {
		if set[page[i].Seq] {
			ms = append(ms, page[i])
		}
	}
	return ms, nil
}

// markSettled records in the mark that the backlog is done, if it is. That is
// written to the disk after the ends of its rows.
func (t *tail) markSettled(ctx context.Context) error {
	t.marking.Lock()
	defer t.marking.Unlock()
	t.mu.Lock()
	settled := t.progress.backlogRead && t.progress.backlog == 0
	t.mu.Unlock()
	if !settled || t.mark.Settled {
		return nil
	}
	return t.changeMark(ctx, func(m *setupMark) error {
		m.Settled, m.Snapshot = true, ""
		return nil
	})
}

// exportedSnapshot returns as text what a snapshot shows that PostgreSQL has
// exported.
func (l *Log) exportedSnapshot(ctx context.Context, name string) (text string, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, l.pool, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET TRANSACTION SNAPSHOT '%s'`, name)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&text)
	})
	if err != nil {
		return "", err
	}
	if text == "" {
		return "", errors.New("once: PostgreSQL exported no snapshot")
	}
	return orderSnapshot(text)
}

// orderSnapshot turns the text of a slot's snapshot into one that PostgreSQL
// can parse. While a slot is being created, only commits raise the snapshot's
// xmax, and xmin is raised to the oldest running transaction. After a rollback,
// xmin can be the larger of the two, as in "17461:17460:". PostgreSQL prints
// such a snapshot and refuses to parse it. It compares xmin first, so
// everything before xmin is visible and nothing else is.
func orderSnapshot(text string) (string, error) {
	var xmin, xmax uint64
	if _, err := fmt.Sscanf(text, "%d:%d:", &xmin, &xmax); err != nil {
		return "", fmt.Errorf("once: PostgreSQL exported a snapshot that cannot be read: %q", text)
	}
	if xmin > xmax {
		return fmt.Sprintf("%d:%d:", xmin, xmin), nil
	}
	return text, nil
}
