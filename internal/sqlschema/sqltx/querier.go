package sqltx

import (
	"context"
	"database/sql"
)

// Querier is a *sql.DB, a *sql.Conn or a *sql.Tx.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Executor is a Querier as package sqlschema takes it.
type Executor struct{ Querier }

// Exec implements sqlschema.Executor.
func (x Executor) Exec(ctx context.Context, statement string) error {
	_, err := x.ExecContext(ctx, statement)
	return err
}

// Number implements sqlschema.Executor. It reads to the end: the driver of SQL Server asks the server to stop what was not
// read to the end, which is one more round trip, and with XACT_ABORT the end of a transaction.
func (x Executor) Number(ctx context.Context, query string) (n int64, err error) {
	rows, err := x.QueryContext(ctx, query)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	found := false
	for rows.Next() {
		if err := rows.Scan(&n); err != nil {
			return 0, err
		}
		found = true
	}
	if err := rows.Err(); err != nil || found {
		return n, err
	}
	return 0, sql.ErrNoRows
}
