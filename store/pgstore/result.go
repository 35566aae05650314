package pgstore

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// batchRows are the rows of the last statement of a batch. The batch ends with them.
type batchRows struct {
	pgx.Rows
	batch pgx.BatchResults
	err   error
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan closes the rows on an error, as pgx does.
func (r *batchRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *batchRows) Close() {
	if r.batch == nil {
		return
	}
	r.Rows.Close()
	r.err = r.batch.Close()
	r.batch = nil
}

func (r *batchRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// firstRow is a row as pgx.Row promises it: what is wrong is said by Scan.
type firstRow struct{ rows pgx.Rows }

func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("once: a QueryRow cannot be scanned into DriverBytes, which are gone when it returns")
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

// failed is what a statement that was not sent returns: rows, or a row. What it embeds is nil, and stands for methods
// that only some versions of pgx have.
type failed struct {
	pgx.Rows
	err error
}

func (f failed) Close()                                       {}
func (f failed) Err() error                                   { return f.err }
func (f failed) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (f failed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (f failed) Next() bool                                   { return false }
func (f failed) Scan(...any) error                            { return f.err }
func (f failed) Values() ([]any, error)                       { return nil, f.err }
func (f failed) RawValues() [][]byte                          { return nil }
func (f failed) Conn() *pgx.Conn                              { return nil }

// failedBatch is what a batch that was not sent returns.
type failedBatch struct {
	pgx.BatchResults
	err error
}

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return failed{err: f.err}, f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failed{err: f.err} }
func (f failedBatch) Close() error                     { return f.err }
