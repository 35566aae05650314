package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// handle is the transaction as its user sees it: all of pgx.Tx but its end, which is Transact's.
// It embeds pgx's own transaction, which is exchanged for a closed one when the transaction is over.
type handle struct {
	pgx.Tx
	closed  pgx.Tx
	nested  []*savepoint
	opening *opening            // nil: the transaction was begun without it
	own     func(once.Key) bool // whose claims are this transaction's, and whose rows are not what they seem
	named   bool                // the tables of the store have a schema
	raw     bool                // its user has, or had, the connection itself
	id      string              // of the transaction, if raw, as far as it is known
	left    bool                // its user has ended it
	ctx     context.Context     // for what has none of its own
	store   *Store
	puts    puts
}

// savepoint is a transaction nested in a handle.
type savepoint struct {
	pgx.Tx
	of *handle
}

// session is what pgx needs round trips to make, once for a connection: a transaction that is open and one that is
// closed. Neither of them sends BEGIN, which travels with the claims.
type session struct{ open, closed pgx.Tx }

const sessionKey = "once/pgstore"

func (s *Store) newHandle(ctx context.Context, conn *pgx.Conn) (*handle, error) {
	custom := conn.PgConn().CustomData()
	made, ok := custom[sessionKey].(session)
	if !ok {
		var err error
		if made, err = newSession(ctx, conn); err != nil {
			return nil, err
		}
		custom[sessionKey] = made
	}
	return &handle{Tx: made.open, closed: made.closed, named: s.named, ctx: ctx, store: s}, nil
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

// end makes whoever has kept the handle get pgx.ErrTxClosed, instead of the connection of somebody else.
func (h *handle) end() {
	h.Tx, h.opening = h.closed, nil
	for _, sp := range h.nested {
		sp.Tx = h.closed
	}
}

// isOver reports whether the transaction has ended, whatever came of it.
func (h *handle) isOver() bool { return h.Tx == h.closed }

// isBusy reports whether rows are open. What is sent then breaks them.
func (h *handle) isBusy() bool { return h.Tx.Conn().PgConn().IsBusy() }

// Begin begins a nested transaction: a savepoint.
func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.nests(ctx); err != nil {
		return nil, err
	}
	if err := h.openOddly(ctx); err != nil {
		return nil, err
	}
	return h.nest(ctx, h.Tx)
}

// Begin begins a transaction nested in a nested one.
func (sp *savepoint) Begin(ctx context.Context) (pgx.Tx, error) { return sp.of.nest(ctx, sp.Tx) }

func (h *handle) nest(ctx context.Context, in pgx.Tx) (pgx.Tx, error) {
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
	return fmt.Errorf("%w: %s is not for the work in it: return nil and it is committed, an error and it is rolled back",
		once.ErrInTx, verb)
}

// refuse says why a text is not for the work in a transaction.
func (h *handle) refuse(sql string) error {
	switch j := judge(sql); {
	case j.kind == control:
		return notYours(sql)
	case !h.named && j.moves:
		return fmt.Errorf("%w: this changes where the tables of the store are looked for: set Options.Schema", once.ErrInvalid)
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

// first reports whether BEGIN and the claim travel with this statement. One that ends the transaction is refused.
func (h *handle) first(ctx context.Context, sql string, args []any) (first bool, err error) {
	if err := h.refuse(sql); err != nil {
		return false, err
	}
	if err := h.heed(ctx, sql, args); err != nil {
		return false, err
	}
	return h.leads(ctx, sql, args)
}

func (h *handle) leads(ctx context.Context, sql string, args []any) (first bool, err error) {
	switch {
	case h.opening == nil:
		return false, nil
	case !h.opening.sent && travels(sql, args):
		return true, nil
	}
	return false, h.opening.before(ctx, sql)
}

// Exec sends a statement.
func (h *handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	switch first, err := h.first(ctx, sql, args); {
	case err != nil:
		return pgconn.CommandTag{}, err
	case first:
		return h.opening.exec(ctx, sql, args)
	}
	return h.Tx.Exec(ctx, sql, args...)
}

// Query sends a query.
func (h *handle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	switch first, err := h.first(ctx, sql, args); {
	case err != nil:
		return failed{err: err}, err
	case first:
		return h.opening.query(ctx, sql, args)
	}
	return h.Tx.Query(ctx, sql, args...)
}

// QueryRow sends a query for one row.
func (h *handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	switch first, err := h.first(ctx, sql, args); {
	case err != nil:
		return failed{err: err}
	case first:
		rows, _ := h.opening.query(ctx, sql, args) // the row says the same
		return firstRow{rows}
	}
	return h.Tx.QueryRow(ctx, sql, args...)
}

func (h *handle) openOddly(ctx context.Context) error {
	if h.opening == nil {
		return nil
	}
	return h.opening.openOddly(ctx)
}

// SendBatch sends statements in one round trip.
func (h *handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.refuseAny(b); err != nil {
		return failedBatch{err: err}
	}
	for _, q := range b.QueuedQueries {
		if err := h.heed(ctx, q.SQL, q.Arguments); err != nil {
			return failedBatch{err: err}
		}
	}
	if err := h.openOddly(ctx); err != nil {
		return failedBatch{err: err}
	}
	return h.Tx.SendBatch(ctx, b)
}

// CopyFrom copies rows into a table.
func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := h.heedTable(ctx, table); err != nil {
		return 0, err
	}
	if err := h.openOddly(ctx); err != nil {
		return 0, err
	}
	return h.Tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare makes a prepared statement.
func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.refuse(sql); err != nil {
		return nil, err
	}
	if err := h.openOddly(ctx); err != nil {
		return nil, err
	}
	return h.Tx.Prepare(ctx, name, sql)
}

// LargeObjects gives access to large objects.
func (h *handle) LargeObjects() pgx.LargeObjects {
	h.expose()
	return h.Tx.LargeObjects()
}

// Conn is the connection, on which nothing guards the transaction.
func (h *handle) Conn() *pgx.Conn {
	h.expose()
	return h.Tx.Conn()
}

func (h *handle) expose() {
	h.sendBeforeConn()
	if h.opening != nil {
		h.opening.exposed()
	}
	if !h.raw {
		h.raw, h.id = true, h.transactionID(h.ctx)
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
		return failed{err: err}, err
	}
	return sp.Tx.Query(ctx, sql, args...)
}

// QueryRow sends a query for one row of a nested transaction.
func (sp *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := sp.of.refuse(sql); err != nil {
		return failed{err: err}
	}
	return sp.Tx.QueryRow(ctx, sql, args...)
}

// SendBatch sends statements of a nested transaction in one round trip.
func (sp *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := sp.of.refuseAny(b); err != nil {
		return failedBatch{err: err}
	}
	return sp.Tx.SendBatch(ctx, b)
}

// Prepare makes a prepared statement.
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

// Conn is the connection, on which nothing guards the transaction.
func (sp *savepoint) Conn() *pgx.Conn {
	sp.of.expose()
	return sp.Tx.Conn()
}

// handleOf is the handle that a transaction is, or is nested in; nil if it is a caller's own.
func handleOf(tx pgx.Tx) *handle {
	switch t := tx.(type) {
	case *handle:
		return t
	case *savepoint:
		return t.of
	}
	return nil
}
