package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/effectively-once/once/store/pgstore/internal/sqltext"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/jackc/pgx/v5"
)

// pendingPuts are the messages that were put in a transaction of the store, and
// are sent with its COMMIT. That they are sent late must make no difference. So
// they are sent before anything that could tell: a savepoint, and a statement
// that names their table. After a savepoint, and after the connection was
// handed out, where a savepoint may begin, messages are sent at once.
type pendingPuts struct {
	phase  putsPhase
	atOnce bool // what is put from now on is not kept

	ms     []store.Outgoing // not sent
	names  outboxlog.Names  // for these
	bytes  int
	calls  []publishing.Call // the statements that send ms; nil: not made yet
	partly bool              // some of the calls were sent, so the others must not be made again
}

// putsPhase says whether relays are to be told of messages.
type putsPhase int

const (
	putsNone      putsPhase = iota // nothing was put
	putsMade                       // something was put, sent or not
	putsCommitted                  // and COMMIT was sent after it
)

// When more than this is pending, it is sent before COMMIT, to bound memory and
// the time of the commit.
const (
	maxPuts     = 1000
	maxPutBytes = 1 << 20
)

// put keeps messages until COMMIT, or sends them in tx, which is the handle or
// is nested in it.
func (h *handle) put(ctx context.Context, tx pgx.Tx, names outboxlog.Names, ms []store.Outgoing) error {
	h.puts.phase = putsMade
	if tx == pgx.Tx(h) && !h.puts.atOnce && h.use == connGuarded {
		return h.keep(ctx, names, ms)
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	return h.store.putNow(ctx, tx, names, ms)
}

func (h *handle) keep(ctx context.Context, names outboxlog.Names, ms []store.Outgoing) error {
	copies := make([]store.Outgoing, len(ms))
	size := 0
	for i, m := range ms {
		m.Message.Body, m.Message.Header = bytes.Clone(m.Message.Body), maps.Clone(m.Message.Header)
		copies[i] = m
		size += len(m.Message.Body)
	}
	calls, err := h.store.putCalls(names, copies) // returns the error of an invalid message here, and not at COMMIT
	if err != nil {
		return err
	}
	p := &h.puts
	switch {
	case p.partly:
		calls = append(p.calls, calls...)
	case len(p.ms) > 0:
		calls = nil
	}
	p.ms, p.calls, p.names, p.bytes = append(p.ms, copies...), calls, names, p.bytes+size
	if (len(p.ms) >= maxPuts || p.bytes >= maxPutBytes) && !h.isBusy() {
		return h.flush(ctx)
	}
	return nil
}

// makeCalls makes the statements that send all pending messages.
func (h *handle) makeCalls() (err error) {
	p := &h.puts
	if p.calls == nil && len(p.ms) > 0 {
		p.calls, err = h.store.putCalls(p.names, p.ms)
	}
	return err
}

// queuePuts queues the pending messages. COMMIT has to follow.
func (h *handle) queuePuts(b *pgx.Batch) error {
	if err := h.makeCalls(); err != nil {
		return err
	}
	queueCalls(b, h.puts.calls)
	if h.puts.phase == putsMade {
		h.puts.phase = putsCommitted
	}
	return nil
}

func queueCalls(b *pgx.Batch, calls []publishing.Call) {
	for _, call := range calls {
		b.Queue(call.Text, call.Args...)
	}
}

// flush sends the pending messages. After an error they are still pending.
func (h *handle) flush(ctx context.Context) error {
	p := &h.puts
	if len(p.ms) == 0 {
		return nil
	}
	if h.use != connGuarded {
		return errNotFlushed
	}
	if err := h.makeCalls(); err != nil {
		return err
	}
	for len(p.calls) > 0 {
		if _, err := h.Tx.Exec(ctx, p.calls[0].Text, p.calls[0].Args...); err != nil {
			return fmt.Errorf("once: the messages that were put before this could not be sent: %w", err)
		}
		p.calls, p.partly = p.calls[1:], true
	}
	p.ms, p.calls, p.partly, p.bytes = nil, nil, false, 0
	return nil
}

// errNotFlushed is returned because a savepoint may have been begun on the
// connection in the meantime.
var errNotFlushed = errors.New("once: messages were put, and are not sent yet because rows were open when Conn was " +
	"called: close rows before Conn, or call it before Put")

// flushBefore sends the pending messages before a statement that could tell
// that they are missing.
func (h *handle) flushBefore(ctx context.Context, sql string, args []any) error {
	switch {
	case sqltext.EffectsOf(sql).Savepoint || sqltext.Rewritten(args):
		return h.beforeSavepoint(ctx)
	case len(h.puts.ms) > 0 && h.namesOutbox(sql):
		return h.flush(ctx)
	}
	return nil
}

// tableName returns the name of a table without its schema and quotes.
func tableName(table string) string {
	return strings.Trim(table[strings.LastIndexByte(table, '.')+1:], `"`)
}

func (h *handle) flushBeforeTable(ctx context.Context, table pgx.Identifier) error {
	if len(h.puts.ms) > 0 && h.namesOutbox(strings.Join(table, ".")) {
		return h.flush(ctx)
	}
	return nil
}

func (h *handle) namesOutbox(sql string) bool {
	sql = strings.ToLower(sql)
	return strings.Contains(sql, h.store.outboxTable) ||
		h.store.log.LogOnly() && strings.Contains(sql, outboxlog.EmitFunction)
}

// beforeSavepoint is called before anything that may begin a savepoint.
func (h *handle) beforeSavepoint(ctx context.Context) error {
	if err := h.runForeseen(ctx); err != nil {
		return err
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	h.puts.atOnce = true
	return nil
}

// flushBeforeConn sends the pending messages before the connection is handed
// out. If that fails, the transaction cannot be committed any more. While rows
// are open nothing can be sent; then the next put fails.
func (h *handle) flushBeforeConn() {
	if len(h.puts.ms) == 0 || h.use != connGuarded || h.isBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), endTime)
	defer cancel()
	_ = h.flush(ctx)
}
