// Package pgxresult has results of statements in the types of pgx: of a
// statement in a batch as if it had been sent by itself, and of one that was
// not sent.
package pgxresult

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// LastRows returns the rows of the last statement of a batch. They close the
// batch.
func LastRows(rows pgx.Rows, batch pgx.BatchResults) pgx.Rows {
	return &lastRows{Rows: rows, batch: batch}
}

type lastRows struct {
	pgx.Rows
	batch pgx.BatchResults // nil: closed
	err   error
}

func (r *lastRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan closes the rows on an error, as pgx does.
func (r *lastRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *lastRows) Close() {
	if r.batch == nil {
		return
	}
	r.Rows.Close()
	r.err = r.batch.Close()
	r.batch = nil
}

func (r *lastRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// FirstRow returns the first of rows, and closes them. Scan returns their
// error.
func FirstRow(rows pgx.Rows) pgx.Row { return firstRow{rows} }

type firstRow struct{ rows pgx.Rows }

func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("once: QueryRow cannot scan into DriverBytes, which are valid only until it returns")
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// Failed is the result of a statement that was not sent: it is a pgx.Rows and a
// pgx.Row.
type Failed struct {
	pgx.Rows // nil, for methods that only some versions of pgx have
	Error    error
}

// FailedBatch is the result of a batch that was not sent.
type FailedBatch struct {
	pgx.BatchResults // nil
	Error            error
}

func (f Failed) Close()                                       {}
func (f Failed) Err() error                                   { return f.Error }
func (f Failed) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (f Failed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (f Failed) Next() bool                                   { return false }
func (f Failed) Scan(...any) error                            { return f.Error }
func (f Failed) Values() ([]any, error)                       { return nil, f.Error }
func (f Failed) RawValues() [][]byte                          { return nil }
func (f Failed) Conn() *pgx.Conn                              { return nil }

func (f FailedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.Error }
func (f FailedBatch) Query() (pgx.Rows, error)         { return Failed{Error: f.Error}, f.Error }
func (f FailedBatch) QueryRow() pgx.Row                { return Failed{Error: f.Error} }
func (f FailedBatch) Close() error                     { return f.Error }
