// Package deferredtx sends the begin of a transaction together with the first
// statement of its user.
//
// A [Tx] is a pgx.Tx for which nothing was sent yet. It sends its opening, such
// as BEGIN and a claim, in one batch with the first statement if that reads or
// writes rows and is sent by Exec, Query or QueryRow. Before anything else it
// sends the opening by itself. If the server refuses the opening, it skips the
// statement, and every later one fails with an unexported error.
package deferredtx

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/effectively-once/once/store/pgstore/internal/pgxresult"
	"github.com/effectively-once/once/store/pgstore/internal/sqltext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Phase says how far the opening of a transaction has come.
type Phase int

const (
	Unsent  Phase = iota // nothing was sent
	Open                 // the server has executed the opening
	Refused              // the server has refused it, with an ERROR
	Failed               // it failed in another way; whether the server executed it is unknown
)

// Statement is a statement of the opening.
type Statement struct {
	SQL  string
	Args []any
}

// Tx is a transaction whose opening is sent with its first statement. It passes
// on to the transaction that it embeds.
type Tx struct {
	pgx.Tx
	ctx     context.Context // for Conn and LargeObjects, which have none
	conn    *pgx.Conn
	opening []Statement

	phase  Phase
	cause  error // of Refused and Failed
	opaque bool
}

// New returns a transaction that sends opening before its first statement.
// inner is a transaction of conn for which no BEGIN was sent. The Tx must not
// be copied after its first use.
func New(ctx context.Context, inner pgx.Tx, conn *pgx.Conn, opening ...Statement) Tx {
	return Tx{Tx: inner, ctx: ctx, conn: conn, opening: opening}
}

// Phase returns how far the opening has come.
func (t *Tx) Phase() Phase { return t.phase }

// Cause returns the error of an opening that was refused or has failed.
func (t *Tx) Cause() error { return t.cause }

// Opaque reports whether something was sent that may have done more than read
// or write rows.
func (t *Tx) Opaque() bool { return t.opaque }

// errRefused is the error of statements after a refused opening. It is
// unexported, because whatever the user then returns is ignored.
var errRefused = errors.New("once: another call has this key, so this statement was not run; the first result is returned, " +
	"whatever this handler returns")

// err is the error of all further statements.
func (t *Tx) err() error {
	if t.phase == Refused {
		return errRefused
	}
	return t.cause
}

// send sends the opening, and sql after it unless that is empty. If it returns
// no error, the next result is that of sql.
func (t *Tx) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	b := new(pgx.Batch)
	for _, s := range t.opening {
		b.Queue(s.SQL, s.Args...)
	}
	if sql != "" {
		b.Queue(sql, args...)
	}
	results := t.conn.SendBatch(ctx, b)
	if err := t.readOpening(results); err != nil {
		_ = results.Close() // returns the same error
		return nil, err
	}
	return results, nil
}

// readOpening reads the results of the opening.
func (t *Tx) readOpening(results pgx.BatchResults) error {
	for range t.opening {
		if _, err := results.Exec(); err != nil {
			t.phase, t.cause = Failed, err
			if _, refused := pgerr.Refused(err); refused {
				t.phase = Refused
			}
			return t.err()
		}
	}
	t.phase = Open
	return nil
}

// open sends the opening by itself, unless it was sent.
func (t *Tx) open(ctx context.Context) error {
	if t.phase == Unsent {
		results, err := t.send(ctx, "", nil)
		if err != nil {
			return err
		}
		if err := results.Close(); err != nil {
			t.phase, t.cause = Failed, err
		}
	}
	return t.err()
}

// openOpaque opens before something that may do more than read or write rows.
func (t *Tx) openOpaque(ctx context.Context) error {
	t.opaque = true
	return t.open(ctx)
}

// openFor opens before a statement that is sent by itself.
func (t *Tx) openFor(ctx context.Context, sql string) error {
	if sqltext.EffectsOf(sql).Kind != sqltext.Rows {
		t.opaque = true
	}
	return t.open(ctx)
}

// joins reports whether the opening is sent together with a statement.
func (t *Tx) joins(sql string, args []any) bool {
	return t.phase == Unsent && sqltext.Batchable(sql, args)
}

// Exec sends a statement.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if !t.joins(sql, args) {
		if err := t.openFor(ctx, sql); err != nil {
			return tag, err
		}
		return t.Tx.Exec(ctx, sql, args...)
	}
	results, err := t.send(ctx, sql, args)
	if err != nil {
		return tag, err
	}
	tag, err = results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag, err
}

// Query sends a query.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !t.joins(sql, args) {
		if err := t.openFor(ctx, sql); err != nil {
			return pgxresult.Failed{Error: err}, err
		}
		return t.Tx.Query(ctx, sql, args...)
	}
	return t.sendQuery(ctx, sql, args)
}

// QueryRow sends a query for one row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !t.joins(sql, args) {
		if err := t.openFor(ctx, sql); err != nil {
			return pgxresult.Failed{Error: err}
		}
		return t.Tx.QueryRow(ctx, sql, args...)
	}
	rows, _ := t.sendQuery(ctx, sql, args) // Scan returns the error
	return pgxresult.FirstRow(rows)
}

func (t *Tx) sendQuery(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	results, err := t.send(ctx, sql, args)
	if err != nil {
		return pgxresult.Failed{Error: err}, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // returns the same error
		return rows, err
	}
	return pgxresult.LastRows(rows, results), nil
}

// Begin begins a nested transaction.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.openOpaque(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// SendBatch sends statements in one round trip.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.openOpaque(ctx); err != nil {
		return pgxresult.FailedBatch{Error: err}
	}
	return t.Tx.SendBatch(ctx, b)
}

// CopyFrom copies rows into a table.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.openOpaque(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare creates a prepared statement.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.openOpaque(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Prepare(ctx, name, sql)
}

// LargeObjects gives access to large objects.
func (t *Tx) LargeObjects() pgx.LargeObjects {
	t.openForConn()
	return t.Tx.LargeObjects()
}

// Conn returns the connection. It is closed if the opening was refused.
func (t *Tx) Conn() *pgx.Conn {
	t.openForConn()
	return t.Tx.Conn()
}

// closeTime bounds closing a connection.
const closeTime = 10 * time.Second

// openForConn opens before the connection is handed out. If there is no
// transaction, it closes the connection: nothing else would keep statements
// from running outside of one.
func (t *Tx) openForConn() {
	if t.openOpaque(t.ctx) != nil && t.conn.PgConn().TxStatus() == 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), closeTime)
		defer cancel()
		_ = t.conn.Close(ctx)
	}
}
