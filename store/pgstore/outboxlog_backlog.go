package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// logBacklog are the rows that are in no log that is read: what was committed before the slot could deliver, as the
// snapshot tells that came with it. All of them are in front of all that comes out of the log.
type logBacklog struct {
	mu    sync.Mutex
	open  bool // there may be more
	lane  int
	after int64
}

// inSnapshot is the condition that the snapshot of the mark shows a row, whose xmin has 32 bits of its transaction's
// number. The others are those of the latest transaction, or one less: no row stays pending for 2^32 transactions.
const inSnapshot = `pg_visible_in_snapshot((SELECT CASE WHEN near < next THEN near ELSE near - 4294967296 END FROM (SELECT
	next, (next >> 32 << 32) | o.xmin::text::bigint AS near FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next)
	AS n) AS x)::text::xid8, $3::pg_snapshot)`

// readBacklog returns the next of the backlog, lane by lane. It returns none when there is none.
func (t *logTail) readBacklog(ctx context.Context, limit int) (ms []store.Outgoing, err error) {
	l := &t.backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return nil, nil
	}
	// The context of one call must not break what the next one needs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	for l.lane < store.Lanes && len(ms) == 0 {
		q := store.OutgoingQuery{Lanes: []int{l.lane}, After: l.after, Limit: min(limit, 10_000), MaxBytes: maxQueued}
		page, err := t.store.Outgoing(ctx, q)
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
		t.track.whole = true
		t.mu.Unlock()
		if err := t.settle(ctx); err != nil {
			return nil, t.fail(err)
		}
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range ms {
		t.track.messages[keyOf(&ms[i])] = delivered{}
	}
	t.track.backlog += len(ms)
	return ms, nil
}

// inSnapshot returns those rows of a lane that the snapshot of the mark shows. The others come out of the log.
func (t *logTail) inSnapshot(ctx context.Context, page []store.Outgoing) (ms []store.Outgoing, err error) {
	if len(page) == 0 {
		return nil, nil
	}
	seqs := make([]int64, len(page))
	for i := range page {
		seqs[i] = page[i].Seq
	}
	rows, err := t.store.pool.Query(ctx, `SELECT o.seq FROM `+t.names.table+` AS o
		WHERE o.lane = $1 AND o.state = 0 AND o.seq = ANY ($2::bigint[]) AND `+inSnapshot, int16(page[0].Lane), seqs, t.mark.Snapshot)
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
	return t.changeMark(ctx, func(mark *logMark) error {
		mark.Settled, mark.Snapshot = true, ""
		return nil
	})
}

// snapshotOf is what the snapshot shows that PostgreSQL has exported, as a text.
func (s *Store) snapshotOf(ctx context.Context, name string) (text string, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
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

// orderSnapshot makes the text of a slot's snapshot one that PostgreSQL reads again. While a slot is being made, only
// commits raise the snapshot's xmax, and xmin is raised to the oldest running transaction: after a rollback xmin can be the
// larger one, as in "17461:17460:". PostgreSQL prints such a snapshot, and refuses to parse it. It compares xmin first, so
// everything before xmin is visible and nothing else is.
func orderSnapshot(text string) (string, error) {
	var xmin, xmax uint64
	if _, err := fmt.Sscanf(text, "%d:%d:", &xmin, &xmax); err != nil {
		return "", fmt.Errorf("once: PostgreSQL exported a snapshot that is not one: %q", text)
	}
	if xmin > xmax {
		return fmt.Sprintf("%d:%d:", xmin, xmin), nil
	}
	return text, nil
}
