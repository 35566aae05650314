package sqltx

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once/store/sqlschema"
)

// DB is a *sql.DB, a *sql.Conn or a *sql.Tx.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Querier makes a DB a [sqlschema.Querier].
type Querier struct{ DB DB }

var _ sqlschema.Querier = Querier{}

// Exec implements [sqlschema.Querier].
func (q Querier) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := q.DB.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Query implements [sqlschema.Querier].
func (q Querier) Query(ctx context.Context, query string, args ...any) (sqlschema.Rows, error) {
	found, err := q.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return rows{found}, nil
}

// rows makes a *sql.Rows a [sqlschema.Rows].
type rows struct{ *sql.Rows }

// Close ignores the error of sql.Rows, which Err returns too.
func (r rows) Close() { _ = r.Rows.Close() }
