package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
)

// rowFate is what a row is found to be.
type rowFate int

const (
	// rowUnseen is of a row whose transaction is in the log, and not yet visible to others. That is a moment, or as long
	// as a synchronous standby takes.
	rowUnseen rowFate = iota
	rowGone           // it has ended, or was moved
	rowPending
)

// lateRows are rows that were sent before they could be seen, and so could not be ended.
type lateRows struct {
	entries []logEntry
	then    store.Ending
}

const (
	unseenGap = 5 * time.Millisecond
	lateGap   = 50 * time.Millisecond
	lateTime  = 2 * time.Second // for their end, when the reader is to close
)

// rows tells the fate of rows that came out of the log.
func (t *logTail) rows(ctx context.Context, entries []logEntry) ([]rowFate, error) {
	fates := make([]rowFate, len(entries))
	if len(entries) == 0 {
		return fates, nil
	}
	xids, lanes, seqs := make([]int64, len(entries)), make([]int16, len(entries)), make([]int64, len(entries))
	for i, e := range entries {
		xids[i], lanes[i], seqs[i] = int64(e.xid), int16(e.message.Lane), e.message.Seq
	}
	rows, err := t.store.pool.Query(ctx, `SELECT r.n, o.seq IS NOT NULL
		FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) WITH ORDINALITY AS r (xid, lane, seq, n)
		LEFT JOIN `+t.names.table+` o ON o.lane = r.lane AND o.state = 0 AND o.seq = r.seq
		WHERE pg_visible_in_snapshot(r.xid::text::xid8, pg_current_snapshot())`, xids, lanes, seqs)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		var pending bool
		if err := rows.Scan(&n, &pending); err != nil {
			return nil, err
		}
		if fates[n-1] = rowGone; pending {
			fates[n-1] = rowPending
		}
	}
	return fates, rows.Err()
}

// Sent says that messages were published. The position moves over rows once their ends are on the server's disk.
func (t *logTail) Sent(ctx context.Context, ms []store.Outgoing, then store.Ending) error {
	bare, rows := t.split(ms)
	t.mu.Lock()
	t.track.done(keysOf(bare))
	t.mu.Unlock()
	if err := t.endRows(ctx, rows, then); err != nil {
		return err
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	return t.whyBroken() // then nothing is confirmed any more
}

// split tells messages of the log from rows.
func (t *logTail) split(ms []store.Outgoing) (bare []store.Outgoing, rows []logEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range ms {
		if m.Seq == 0 {
			bare = append(bare, m)
		} else {
			rows = append(rows, logEntry{message: m, xid: t.track.messages[keyOf(&m)].xid})
		}
	}
	return bare, rows
}

func messagesOf(entries []logEntry) []store.Outgoing {
	ms := make([]store.Outgoing, len(entries))
	for i, e := range entries {
		ms[i] = e.message
	}
	return ms
}

// endRows ends rows, and those that cannot be seen yet a little later.
func (t *logTail) endRows(ctx context.Context, rows []logEntry, then store.Ending) error {
	if len(rows) == 0 {
		return nil
	}
	ended, err := t.store.Sent(ctx, [16]byte{}, messagesOf(rows), then)
	if err != nil {
		return err
	}
	if ended < len(rows) {
		if rows, err = t.postpone(ctx, rows, then); err != nil {
			return err
		}
	}
	until, err := t.logEnd(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.track.ended(keysOf(messagesOf(rows)), until)
	t.mu.Unlock()
	return nil
}

// postpone puts off the rows that are still to be ended, and returns the others. A row that was ended by somebody else, or
// moved, is nobody's here.
func (t *logTail) postpone(ctx context.Context, rows []logEntry, then store.Ending) (ended []logEntry, err error) {
	fates, err := t.rows(ctx, rows)
	if err != nil {
		return nil, err
	}
	var late []logEntry
	for i, fate := range fates {
		if fate == rowGone {
			ended = append(ended, rows[i])
		} else {
			late = append(late, rows[i])
		}
	}
	if len(late) == 0 {
		return ended, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, lateRows{entries: late, then: then})
	if !t.catching && t.broken == nil {
		t.catching = true
		go t.catchUp()
	}
	return ended, nil
}

// catchUp ends the rows that were put off, until there are none.
func (t *logTail) catchUp() {
	tick := time.NewTicker(lateGap)
	defer tick.Stop()
	for {
		select {
		case <-t.ended:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		late := t.late
		t.late = nil
		t.catching = len(late) > 0
		t.mu.Unlock()
		if len(late) == 0 {
			return
		}
		for _, l := range late {
			ctx, cancel := context.WithTimeout(context.Background(), endTime)
			err := t.endRows(ctx, l.entries, l.then)
			cancel()
			if err != nil {
				_ = t.fail(err)
			}
		}
	}
}

// SetAside moves rows, and makes rows of messages that are in the log only. When it returns without an error, they are on
// the server's disk.
func (t *logTail) SetAside(ctx context.Context, ms []store.Outgoing) error {
	bare, rows := t.split(ms)
	if err := t.insertAside(ctx, bare); err != nil {
		return explain(err)
	}
	if err := t.moveAside(ctx, rows); err != nil {
		return err
	}
	t.mu.Lock()
	t.track.done(keysOf(ms))
	t.mu.Unlock()
	return t.settle(ctx)
}

// insertAside keeps the order of messages, so that it is that of their numbers.
func (t *logTail) insertAside(ctx context.Context, ms []store.Outgoing) error {
	n := len(ms)
	if n == 0 {
		return nil
	}
	lanes, states, attempts, created := make([]int16, n), make([]int16, n), make([]int32, n), make([]int64, n)
	ids, topics, keys, times := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	reasons, causes, headers, bodies := make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i, m := range ms {
		header, err := consuming.EncodeHeader(m.Message.Header)
		if err != nil {
			return err
		}
		lanes[i], states[i], attempts[i], created[i] = int16(m.Lane), int16(m.State), int32(m.Attempts), m.Created.UnixMicro()
		ids[i], topics[i], keys[i], times[i] = m.Message.ID, m.Message.Topic, m.Message.OrderingKey, consuming.EncodeTime(m.Message.Time)
		reasons[i], causes[i], headers[i] = consuming.Clean(m.Reason[:min(len(m.Reason), maxReason)]), m.Cause, header
		if len(m.Message.Body) > 0 {
			bodies[i] = m.Message.Body
		}
	}
	_, err := t.store.pool.Exec(ctx, `INSERT INTO `+t.names.table+` (lane, state, attempts, created, changed, id, topic,
		ordering_key, produced, reason, cause, header, body)
		SELECT lane, state, attempts, created, `+t.store.names.Now()+`, id, topic, ordering_key, produced, reason, cause, header, body
		FROM unnest($1::smallint[], $2::smallint[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::text[], $10::text[], $11::text[], $12::bytea[]) WITH ORDINALITY
		AS u (lane, state, attempts, created, id, topic, ordering_key, produced, reason, cause, header, body, n) ORDER BY n`,
		lanes, states, attempts, created, ids, topics, keys, times, reasons, causes, headers, bodies)
	return err
}

const maxReason = 64 << 10

// moveAside moves rows, and waits for those that cannot be seen yet.
func (t *logTail) moveAside(ctx context.Context, rows []logEntry) error {
	for {
		moved, err := t.moveRows(ctx, rows)
		if err != nil || moved == len(rows) {
			return err
		}
		fates, err := t.rows(ctx, rows)
		if err != nil {
			return err
		}
		var left []logEntry
		for i, fate := range fates {
			if fate != rowGone {
				left = append(left, rows[i])
			}
		}
		if rows = left; len(rows) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("once: rows cannot be set aside, because their transactions still wait for a standby: %w", ctx.Err())
		case <-time.After(unseenGap):
		}
	}
}

// moveRows moves each row to its State. They were pending when they were read.
func (t *logTail) moveRows(ctx context.Context, rows []logEntry) (moved int, err error) {
	to := make(map[store.OutgoingState][]store.Outgoing)
	for _, e := range rows {
		m := e.message
		m.State = store.Pending
		to[e.message.State] = append(to[e.message.State], m)
	}
	for state, ms := range to {
		n, err := t.store.MoveOutgoing(ctx, [16]byte{}, ms, state)
		if err != nil {
			return moved, err
		}
		moved += n
	}
	return moved, nil
}
