package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/effectively-once/once/internal/sqlschema/publishing"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// puts are the messages that were put in a transaction of the store's, and travel with its COMMIT. It must make no
// difference that they come late: so they are sent before what could tell, which is the beginning of a savepoint and
// what names their table. From a savepoint on, and when the connection itself was given out, which may begin one, they
// are sent at once.
type puts struct {
	ms     []store.Outgoing  // not sent
	calls  []publishing.Call // that send them; nil: to be made
	partly bool              // some of them were sent
	names  logNames          // for these
	bytes  int
	atOnce bool
	any    bool // something was put, sent or not
	ended  bool // and COMMIT was sent behind it
}

// What is more is not kept in memory, and does not make the commit long.
const (
	maxPuts     = 1000
	maxPutBytes = 1 << 20
)

// put takes messages that are to travel with COMMIT, or sends them in the transaction that is the handle or nested in
// it.
func (h *handle) put(ctx context.Context, tx pgx.Tx, names logNames, ms []store.Outgoing) error {
	if tx == pgx.Tx(h) && !h.puts.atOnce && !h.raw {
		return h.keep(ctx, names, ms)
	}
	if err := h.sendPuts(ctx); err != nil {
		return err
	}
	return h.store.putNow(ctx, tx, names, ms)
}

func (h *handle) keep(ctx context.Context, names logNames, ms []store.Outgoing) error {
	copies := make([]store.Outgoing, len(ms))
	size := 0
	for i, m := range ms {
		m.Message.Body, m.Message.Header = bytes.Clone(m.Message.Body), maps.Clone(m.Message.Header)
		copies[i] = m
		size += len(m.Message.Body)
	}
	calls, err := h.store.putCalls(names, copies) // which refuses here what is wrong, and not at the end
	if err != nil {
		return err
	}
	p := &h.puts
	switch {
	case p.partly: // what was sent must not be made again
		calls = append(p.calls, calls...)
	case len(p.ms) > 0:
		calls = nil
	}
	p.ms, p.calls, p.names, p.bytes = append(p.ms, copies...), calls, names, p.bytes+size
	if (len(p.ms) >= maxPuts || p.bytes >= maxPutBytes) && !h.isBusy() {
		return h.sendPuts(ctx)
	}
	return nil
}

// prepare makes the statements that send what was put, together.
func (h *handle) preparePuts() (err error) {
	p := &h.puts
	if p.calls == nil && len(p.ms) > 0 {
		p.calls, err = h.store.putCalls(p.names, p.ms)
	}
	return err
}

// queuePuts queues what was put and not sent. COMMIT has to follow.
func (h *handle) queuePuts(b *pgx.Batch) error {
	if err := h.preparePuts(); err != nil {
		return err
	}
	queueCalls(b, h.puts.calls)
	h.puts.ended = h.puts.any
	return nil
}

func queueCalls(b *pgx.Batch, calls []publishing.Call) {
	for _, call := range calls {
		b.Queue(call.Text, call.Args...)
	}
}

// sendPuts sends what was put and not sent. After an error it is still to be sent.
func (h *handle) sendPuts(ctx context.Context) error {
	p := &h.puts
	if len(p.ms) == 0 {
		return nil
	}
	if h.raw {
		return errUnsent
	}
	if err := h.preparePuts(); err != nil {
		return err
	}
	for len(p.calls) > 0 {
		if err := h.send(ctx, p.calls[0]); err != nil {
			return fmt.Errorf("once: the messages that were put before this could not be sent: %w", err)
		}
		p.calls, p.partly = p.calls[1:], true
	}
	p.ms, p.calls, p.partly, p.bytes = nil, nil, false, 0
	return nil
}

// errUnsent is rather than to guess whether a savepoint was begun meanwhile.
var errUnsent = errors.New("once: messages were put, and are not sent yet because rows were open when Conn was " +
	"called: close rows before Conn, or call it before Put")

// send sends a statement that only writes rows.
func (h *handle) send(ctx context.Context, call publishing.Call) error {
	first, err := h.leads(ctx, call.Text, call.Args)
	switch {
	case err != nil:
		return err
	case first:
		_, err = h.opening.exec(ctx, call.Text, call.Args)
	default:
		_, err = h.Tx.Exec(ctx, call.Text, call.Args...)
	}
	return err
}

// heed sends what was put before a statement that could tell.
func (h *handle) heed(ctx context.Context, sql string, args []any) error {
	switch {
	case judge(sql).nests || isRewritten(args):
		return h.nests(ctx)
	case len(h.puts.ms) > 0 && h.mentionsOutbox(sql):
		return h.sendPuts(ctx)
	}
	return nil
}

// tableName is the name of a table without its schema and quotes.
func tableName(table string) string {
	return strings.Trim(table[strings.LastIndexByte(table, '.')+1:], `"`)
}

func (h *handle) heedTable(ctx context.Context, table pgx.Identifier) error {
	if len(h.puts.ms) > 0 && h.mentionsOutbox(strings.Join(table, ".")) {
		return h.sendPuts(ctx)
	}
	return nil
}

func (h *handle) mentionsOutbox(sql string) bool {
	sql = strings.ToLower(sql)
	return strings.Contains(sql, h.store.outboxTable) ||
		h.store.log.mode == OutboxLogOnly && strings.Contains(sql, "pg_logical_emit_message")
}

// nests is for what may begin a savepoint.
func (h *handle) nests(ctx context.Context) error {
	if err := h.sendPuts(ctx); err != nil {
		return err
	}
	h.puts.atOnce = true
	return nil
}

// sendBeforeConn sends what was put before the connection is given out. If that fails, the transaction cannot be
// committed any more. While rows are open nothing can be sent, which makes a difference only if more is put.
func (h *handle) sendBeforeConn() {
	if len(h.puts.ms) == 0 || h.raw || h.isBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), endTime)
	defer cancel()
	_ = h.sendPuts(ctx)
}

// ring is called when the transaction has ended.
func (h *handle) ring() {
	if h != nil && h.puts.ended {
		h.store.bell.ring(true)
	}
}
