package outboxlog

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/publishing"
)

// rowState is what a look finds about a row that the log delivered.
type rowState int

const (
	// rowHidden is a row whose transaction is in the log and not yet visible to
	// others. That takes a moment, or as long as a synchronous standby takes.
	rowHidden rowState = iota
	rowGone            // it has ended, or was moved to another state
	rowPending
)

// hiddenRows are rows that were published while they were hidden, and so could
// not be ended.
type hiddenRows struct {
	entries []entry
	then    store.Ending
}

const (
	hiddenGap = 5 * time.Millisecond  // between two looks at hidden rows
	retryGap  = 50 * time.Millisecond // between two attempts to end them
	closeTime = 2 * time.Second       // how long Close waits for them
)

// rowStates returns the states of rows that the log delivered.
func (t *tail) rowStates(ctx context.Context, entries []entry) ([]rowState, error) {
	states := make([]rowState, len(entries))
	if len(entries) == 0 {
		return states, nil
	}
	xids, lanes, seqs := make([]int64, len(entries)), make([]int16, len(entries)), make([]int64, len(entries))
	for i, e := range entries {
		xids[i], lanes[i], seqs[i] = int64(e.xid), int16(e.message.Lane), e.message.Seq
	}
	rows, err := t.log.pool.Query(ctx, `SELECT r.n, o.seq IS NOT NULL
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
		if states[n-1] = rowGone; pending {
			states[n-1] = rowPending
		}
	}
	return states, rows.Err()
}

// Sent records that messages were published. Rows are confirmed to the server
// once their ends are on its disk.
func (t *tail) Sent(ctx context.Context, ms []store.Outgoing, then store.Ending) error {
	var rows []entry
	t.mu.Lock()
	for i := range ms {
		if ms[i].Seq == 0 {
			t.progress.finish(keyOf(&ms[i]))
		} else {
			rows = append(rows, t.entryOf(&ms[i]))
		}
	}
	t.progress.advance()
	t.mu.Unlock()
	if err := t.endRows(ctx, rows, then); err != nil {
		return err
	}
	if err := t.markSettled(ctx); err != nil {
		return err
	}
	return t.whyBroken() // then nothing is confirmed any more
}

// split separates messages without a row from rows.
func (t *tail) split(ms []store.Outgoing) (rowless []store.Outgoing, rows []entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range ms {
		if ms[i].Seq == 0 {
			rowless = append(rowless, ms[i])
		} else {
			rows = append(rows, t.entryOf(&ms[i]))
		}
	}
	return rowless, rows
}

// entryOf returns the entry of a row. It needs the lock.
func (t *tail) entryOf(m *store.Outgoing) entry {
	return entry{message: *m, xid: t.progress.messages[keyOf(m)].xid}
}

func messagesOf(entries []entry) []store.Outgoing {
	ms := make([]store.Outgoing, len(entries))
	for i, e := range entries {
		ms[i] = e.message
	}
	return ms
}

// endRows ends rows. Hidden ones are ended later, by another goroutine.
func (t *tail) endRows(ctx context.Context, rows []entry, then store.Ending) error {
	if len(rows) == 0 {
		return nil
	}
	ended, err := t.log.rows.Sent(ctx, [16]byte{}, messagesOf(rows), then)
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
	t.progress.rowsEnded(keysOf(messagesOf(rows)), until)
	t.mu.Unlock()
	return nil
}

// postpone puts off the rows that have not ended, and returns the others. A row
// that another process has ended or moved counts as ended.
func (t *tail) postpone(ctx context.Context, rows []entry, then store.Ending) (ended []entry, err error) {
	states, err := t.rowStates(ctx, rows)
	if err != nil {
		return nil, err
	}
	var hidden []entry
	for i, state := range states {
		if state == rowGone {
			ended = append(ended, rows[i])
		} else {
			hidden = append(hidden, rows[i])
		}
	}
	if len(hidden) == 0 {
		return ended, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hidden = append(t.hidden, hiddenRows{entries: hidden, then: then})
	if !t.retrying && t.broken == nil {
		t.retrying = true
		go t.retryHidden()
	}
	return ended, nil
}

// retryHidden ends the rows that were put off, until there are none.
func (t *tail) retryHidden() {
	tick := time.NewTicker(retryGap)
	defer tick.Stop()
	for {
		select {
		case <-t.readEnded:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		hidden := t.hidden
		t.hidden = nil
		t.retrying = len(hidden) > 0
		t.mu.Unlock()
		if len(hidden) == 0 {
			return
		}
		for _, rows := range hidden {
			ctx, cancel := context.WithTimeout(context.Background(), callTime)
			err := t.endRows(ctx, rows.entries, rows.then)
			cancel()
			if err != nil {
				_ = t.fail(err)
			}
		}
	}
}

// SetAside gives rows another state, and inserts rows for messages that have
// none. When it returns nil, all of them are on the server's disk.
func (t *tail) SetAside(ctx context.Context, ms []store.Outgoing) error {
	rowless, rows := t.split(ms)
	if err := t.insertRows(ctx, rowless); err != nil {
		return pgerr.Explain(err)
	}
	if err := t.moveRows(ctx, rows); err != nil {
		return err
	}
	t.mu.Lock()
	t.progress.done(keysOf(ms))
	t.mu.Unlock()
	return t.markSettled(ctx)
}

// insertRows inserts rows, so that the order of their numbers is that of ms.
func (t *tail) insertRows(ctx context.Context, ms []store.Outgoing) error {
	n := len(ms)
	if n == 0 {
		return nil
	}
	lanes, states, attempts, created := make([]int16, n), make([]int16, n), make([]int32, n), make([]int64, n)
	ids, topics, keys, times := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	reasons, causes, headers, bodies := make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i, m := range ms {
		header, err := sqlschema.EncodeHeader(m.Message.Header)
		if err != nil {
			return err
		}
		lanes[i], states[i], attempts[i], created[i] = int16(m.Lane), int16(m.State), int32(m.Attempts), m.Created.UnixMicro()
		ids[i], topics[i], keys[i], times[i] = m.Message.ID, m.Message.Topic, m.Message.OrderingKey, sqlschema.EncodeTime(m.Message.Time)
		reasons[i], causes[i], headers[i] = sqlschema.ValidText(m.Reason[:min(len(m.Reason), maxReason)]), m.Cause, header
		if len(m.Message.Body) > 0 {
			bodies[i] = m.Message.Body
		}
	}
	_, err := t.log.pool.Exec(ctx, `INSERT INTO `+t.names.table+` (lane, state, attempts, created, changed, id, topic,
		ordering_key, produced, reason, cause, header, body)
		SELECT lane, state, attempts, created, `+t.log.schema.Now()+`, id, topic, ordering_key, produced, reason, cause, header, body
		FROM unnest($1::smallint[], $2::smallint[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::text[], $10::text[], $11::text[], $12::bytea[]) WITH ORDINALITY
		AS u (lane, state, attempts, created, id, topic, ordering_key, produced, reason, cause, header, body, n) ORDER BY n`,
		lanes, states, attempts, created, ids, topics, keys, times, reasons, causes, headers, bodies)
	return err
}

const maxReason = 64 << 10

// moveRows gives rows the State of their messages. It waits for hidden rows.
func (t *tail) moveRows(ctx context.Context, rows []entry) error {
	for {
		moved, err := t.moveVisible(ctx, rows)
		if err != nil || moved == len(rows) {
			return err
		}
		states, err := t.rowStates(ctx, rows)
		if err != nil {
			return err
		}
		var left []entry
		for i, state := range states {
			if state != rowGone {
				left = append(left, rows[i])
			}
		}
		if rows = left; len(rows) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("once: rows cannot be set aside, because their transactions still wait for a standby: %w", ctx.Err())
		case <-time.After(hiddenGap):
		}
	}
}

// moveVisible moves the rows that are visible, and returns how many. They were
// pending when they were read.
func (t *tail) moveVisible(ctx context.Context, rows []entry) (moved int, err error) {
	to := make(map[store.OutgoingState][]store.Outgoing)
	for _, e := range rows {
		m := e.message
		m.State = store.Pending
		to[e.message.State] = append(to[e.message.State], m)
	}
	for state, ms := range to {
		n, err := t.log.rows.MoveOutgoing(ctx, publishing.LogReader, ms, state)
		if err != nil {
			return moved, err
		}
		moved += n
	}
	return moved, nil
}
