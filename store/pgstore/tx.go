package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/pgxresult"
	"github.com/effectively-once/once/store/pgstore/internal/sqltext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// handle is a transaction of the store as the user's work sees it. It refuses
// what would end the transaction, and keeps messages that are put until COMMIT.
type handle struct {
	pgx.Tx // replaced by closed when the transaction is over
	closed pgx.Tx
	nested []*savepoint

	store  *Store
	pooled *pgxpool.Conn
	conn   *pgx.Conn
	ctx    context.Context // for methods that have none

	reserved func(once.Key) bool // whether a key is claimed by this transaction, whatever its record says
	foreseen *foreseen           // the claim, if its end is foreseen
	look     *lookAhead          // at the shelf, if the work begins with it
	refused  error               // of a connection that was not handed out, but closed
	use      connUse
	id       string // of the transaction when the connection was handed out, if known
	puts     pendingPuts
}

// savepoint is a transaction nested in a handle.
type savepoint struct {
	pgx.Tx
	of *handle
}

// session has two transactions of pgx for a connection, one open and one
// closed. Neither has sent BEGIN, which is sent with the claims. To make them
// takes round trips, so a connection keeps them.
type session struct{ open, closed pgx.Tx }

const sessionKey = "once/pgstore"

// acquire takes a connection from the pool. Nothing is sent, except for the
// first time on a connection. The caller has to call release.
func (s *Store) acquire(ctx context.Context) (*handle, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, explain(err)
	}
	conn := pooled.Conn()
	custom := conn.PgConn().CustomData()
	made, ok := custom[sessionKey].(session)
	if !ok {
		if made, err = newSession(ctx, conn); err != nil {
			pooled.Release()
			return nil, explain(err)
		}
		custom[sessionKey] = made
	}
	return &handle{Tx: made.open, closed: made.closed, store: s, pooled: pooled, conn: conn, ctx: ctx}, nil
}

func newSession(ctx context.Context, conn *pgx.Conn) (made session, err error) {
	quiet := pgx.TxOptions{BeginQuery: "select 1", CommitQuery: "select 1"}
	if made.open, err = conn.BeginTx(ctx, quiet); err != nil {
		return made, err
	}
	if made.closed, err = conn.BeginTx(ctx, quiet); err != nil {
		return made, err
	}
	return made, made.closed.Commit(ctx)
}

// release rolls back what was not committed, and returns the connection to the
// pool, which closes it if it is still in a transaction. It tells relays of
// messages that were committed.
func (h *handle) release(ctx context.Context) {
	h.close()
	rollback(ctx, h.conn)
	h.pooled.Release()
	if h.puts.phase == putsCommitted {
		h.store.notifier.notify(true)
	}
}

// restart rolls back, and forgets what was put.
func (h *handle) restart(ctx context.Context) {
	rollback(ctx, h.conn)
	h.puts = pendingPuts{}
}

// close makes whoever has kept the handle get pgx.ErrTxClosed, instead of a
// transaction of another caller on the same connection.
func (h *handle) close() {
	h.Tx = h.closed
	for _, sp := range h.nested {
		sp.Tx = h.closed
	}
}

// isClosed reports whether the transaction has ended.
func (h *handle) isClosed() bool { return h.Tx == h.closed }

// isBusy reports whether rows are open. Sending anything then would break them.
func (h *handle) isBusy() bool { return h.conn.PgConn().IsBusy() }

// Begin begins a nested transaction: a savepoint.
func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.beforeSavepoint(ctx); err != nil {
		return nil, err
	}
	return h.nest(ctx, h.Tx)
}

// Begin begins a transaction nested in a nested one.
func (sp *savepoint) Begin(ctx context.Context) (pgx.Tx, error) { return sp.of.nest(ctx, sp.Tx) }

func (h *handle) nest(ctx context.Context, in pgx.Tx) (pgx.Tx, error) {
	h.look.discard()
	inner, err := in.Begin(ctx)
	if err != nil {
		return nil, err
	}
	sp := &savepoint{Tx: inner, of: h}
	h.nested = append(h.nested, sp)
	return sp, nil
}

// Commit is refused.
func (h *handle) Commit(context.Context) error { return notYours("Commit") }

// Rollback is refused. A deferred Rollback does no harm.
func (h *handle) Rollback(context.Context) error { return notYours("Rollback") }

func notYours(verb string) error {
	return fmt.Errorf("%w: work in a transaction must not call %s: return nil to commit, an error to roll back",
		once.ErrInTx, verb)
}

// refuse returns an error if work in a transaction must not send a text.
func (h *handle) refuse(sql string) error {
	switch e := sqltext.EffectsOf(sql); {
	case e.Kind == sqltext.Control:
		return notYours(sql)
	case !h.store.qualified && e.SearchPath:
		return fmt.Errorf("%w: this changes the schema in which the tables of the store are found: set Options.Schema", once.ErrInvalid)
	}
	return nil
}

func (h *handle) refuseAny(b *pgx.Batch) error {
	for _, q := range b.QueuedQueries {
		if err := h.refuse(q.SQL); err != nil {
			return err
		}
	}
	return nil
}

// before is called before a statement of the work is sent.
func (h *handle) before(ctx context.Context, sql string, args []any) error {
	h.look.discard()
	if err := h.refuse(sql); err != nil {
		return err
	}
	return h.flushBefore(ctx, sql, args)
}

// Exec sends a statement.
func (h *handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := h.before(ctx, sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	return h.Tx.Exec(ctx, sql, args...)
}

// Query sends a query.
func (h *handle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := h.before(ctx, sql, args); err != nil {
		return pgxresult.Failed{Error: err}, err
	}
	return h.guardRows(h.Tx.Query(ctx, sql, args...))
}

// QueryRow sends a query for one row.
func (h *handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := h.before(ctx, sql, args); err != nil {
		return pgxresult.Failed{Error: err}
	}
	return h.Tx.QueryRow(ctx, sql, args...)
}

// SendBatch sends statements in one round trip.
func (h *handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	h.look.discard()
	if err := h.refuseAny(b); err != nil {
		return pgxresult.FailedBatch{Error: err}
	}
	for _, q := range b.QueuedQueries {
		if err := h.flushBefore(ctx, q.SQL, q.Arguments); err != nil {
			return pgxresult.FailedBatch{Error: err}
		}
	}
	return h.sendGuarded(ctx, h.Tx, b)
}

// CopyFrom copies rows into a table.
func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	h.look.discard()
	if err := h.flushBeforeTable(ctx, table); err != nil {
		return 0, err
	}
	return h.Tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare creates a prepared statement.
func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.refuse(sql); err != nil {
		return nil, err
	}
	return h.Tx.Prepare(ctx, name, sql)
}

// LargeObjects gives access to large objects.
func (h *handle) LargeObjects() pgx.LargeObjects {
	h.expose()
	return h.Tx.LargeObjects()
}

// Conn returns the connection, on which nothing guards the transaction.
func (h *handle) Conn() *pgx.Conn {
	h.expose()
	return h.Tx.Conn()
}

// expose is called before the connection is handed out.
func (h *handle) expose() {
	h.look.discard()
	h.flushBeforeConn()
	h.Tx.Conn() // sends BEGIN, if that was not sent yet
	h.runBeforeConn()
	if h.use == connGuarded && !h.isClosed() {
		h.use, h.id = connHandedOut, h.transactionID(h.ctx)
	}
}

// Exec sends a statement of a nested transaction.
func (sp *savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := sp.of.refuse(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return sp.Tx.Exec(ctx, sql, args...)
}

// Query sends a query of a nested transaction.
func (sp *savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := sp.of.refuse(sql); err != nil {
		return pgxresult.Failed{Error: err}, err
	}
	return sp.of.guardRows(sp.Tx.Query(ctx, sql, args...))
}

// QueryRow sends a query for one row of a nested transaction.
func (sp *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := sp.of.refuse(sql); err != nil {
		return pgxresult.Failed{Error: err}
	}
	return sp.Tx.QueryRow(ctx, sql, args...)
}

// SendBatch sends statements of a nested transaction in one round trip.
func (sp *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := sp.of.refuseAny(b); err != nil {
		return pgxresult.FailedBatch{Error: err}
	}
	return sp.of.sendGuarded(ctx, sp.Tx, b)
}

// Prepare creates a prepared statement.
func (sp *savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := sp.of.refuse(sql); err != nil {
		return nil, err
	}
	return sp.Tx.Prepare(ctx, name, sql)
}

// LargeObjects gives access to large objects.
func (sp *savepoint) LargeObjects() pgx.LargeObjects {
	sp.of.expose()
	return sp.Tx.LargeObjects()
}

// Conn returns the connection, on which nothing guards the transaction.
func (sp *savepoint) Conn() *pgx.Conn {
	sp.of.expose()
	return sp.Tx.Conn()
}

// handleOf returns the handle that a transaction is, or in which it is nested.
// It returns nil for a transaction that the caller began.
func handleOf(tx pgx.Tx) *handle {
	switch t := tx.(type) {
	case *handle:
		return t
	case *savepoint:
		return t.of
	}
	return nil
}
