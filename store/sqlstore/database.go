package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lossrate"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// database is where a Store keeps its records: a pool, and the SQL of its
// dialect.
type database struct {
	pool     *sql.DB
	dialect  sqlschema.Dialect
	names    sqlschema.Names
	sql      *records.Statements
	prepared *prepared     // in SQLite and MySQL; nil elsewhere
	queue    queue         // of writers, in SQLite; nil elsewhere
	losses   lossrate.Rate // of claims, in PostgreSQL
	invalid  error         // what is wrong with the arguments of New
	checked  atomic.Bool   // the tables and the session were found to be right
}

// ready checks the tables and the settings of the session at the first use. It
// uses the connection of the call, which may be the only one. A call that has
// none yet prepares statements.
func (d *database) ready(ctx context.Context, db sqltx.DB) error {
	if d.invalid != nil {
		return d.invalid
	}
	if _, ok := db.(*sql.DB); ok {
		d.prepared.prepare(ctx)
	}
	if d.checked.Load() {
		return nil
	}
	q := sqltx.Querier{DB: db}
	err := d.names.Check(ctx, q)
	if err == nil {
		err = d.names.CheckSession(ctx, q)
	}
	if err != nil {
		return d.explain(err)
	}
	d.checked.Store(true)
	return nil
}

// readyTx is ready for a transaction of the caller's, which must not be nil.
func (d *database) readyTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil && d.invalid == nil {
		return fmt.Errorf("%w: the *sql.Tx is nil", once.ErrInvalid)
	}
	return d.ready(ctx, tx)
}

// get returns the row of a key. It is the zero row if there is none.
func (d *database) get(ctx context.Context, db sqltx.DB, st sqlschema.Statement, k once.Key) (records.Row, error) {
	rows, err := d.rows(ctx, db, st, sqlschema.Params{"key": d.names.UUID(k.UUID())})
	if err != nil || len(rows) == 0 {
		return records.Row{}, err
	}
	return rows[0], nil
}

// exec runs a statement and returns the number of rows that it changed.
func (d *database) exec(ctx context.Context, db sqltx.DB, st sqlschema.Statement,
	p sqlschema.Params) (changed int64, err error) {

	result, err := d.prepared.on(db).ExecContext(ctx, st.Text, st.Args(p)...)
	if err != nil {
		return 0, d.explain(err)
	}
	return result.RowsAffected()
}

// rows runs a query for records.
func (d *database) rows(ctx context.Context, db sqltx.DB, st sqlschema.Statement,
	p sqlschema.Params) (found []records.Row, err error) {

	db, closed := d.prepared.forQuery(db, st.Text)
	defer closed()
	rows, err := db.QueryContext(ctx, st.Text, st.Args(p)...)
	if err != nil {
		return nil, d.explain(err)
	}
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() { // a claim in SQL Server may send a second result
		for rows.Next() {
			r, err := records.ReadRow(rows)
			if err != nil {
				return nil, err
			}
			found = append(found, r)
		}
	}
	return found, d.explain(rows.Err())
}

// explain wraps an error with the error of package once that tells the caller
// what to do. It returns nil for nil.
func (d *database) explain(err error) error {
	var refusal sqlschema.Refusal
	var moved sqlschema.Lost
	switch {
	case err == nil:
		return nil
	case errors.As(err, &moved):
		return fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
	case errors.As(err, &refusal):
		return fmt.Errorf("%w: %w", once.ErrInvalid, err)
	case strings.HasSuffix(err.Error(), "sql: database is closed"): // database/sql does not export this error
		return fmt.Errorf("%w: %w", once.ErrClosed, err)
	}
	return d.conflict(err)
}

// conflict wraps an error with [once.ErrConflict] if the transaction has to be
// repeated as a whole.
func (d *database) conflict(err error) error {
	failure := d.dialect.Failure(err)
	if failure != sqlschema.Conflict && failure != sqlschema.LockTimeout || errors.Is(err, once.ErrConflict) {
		return err
	}
	return fmt.Errorf("%w: %w", once.ErrConflict, err)
}
