package sqltx

import (
	"context"
	"database/sql"
)

// Querier is a *sql.DB, a *sql.Conn or a *sql.Tx.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Executor is a Querier as package sqlschema takes it.
type Executor struct{ Querier }

// Exec implements sqlschema.Executor.
func (x Executor) Exec(ctx context.Context, statement string) error {
	_, err := x.ExecContext(ctx, statement)
	return err
}

// Number implements sqlschema.Executor.
func (x Executor) Number(ctx context.Context, query string) (n int64, err error) {
	err = x.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}
