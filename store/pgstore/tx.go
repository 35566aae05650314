package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// handle is the transaction as its user sees it: all of pgx.Tx but its end, which is Transact's.
// It embeds pgx's own transaction, which is exchanged for a closed one when the transaction is over.
type handle struct {
	pgx.Tx
	closed pgx.Tx
	nested []*savepoint
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

func newHandle(ctx context.Context, conn *pgx.Conn) (*handle, error) {
	custom := conn.PgConn().CustomData()
	made, ok := custom[sessionKey].(session)
	if !ok {
		var err error
		if made, err = newSession(ctx, conn); err != nil {
			return nil, err
		}
		custom[sessionKey] = made
	}
	return &handle{Tx: made.open, closed: made.closed}, nil
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
	h.Tx = h.closed
	for _, sp := range h.nested {
		sp.Tx = h.closed
	}
}

// Begin begins a nested transaction: a savepoint.
func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) { return h.nest(ctx, h.Tx) }

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
