package sqlschema

import (
	"context"
	"fmt"
)

// Querier is a pool, a connection or a transaction of any SQL client.
type Querier interface {
	// Exec runs a statement and returns the number of rows that it changed.
	Exec(ctx context.Context, statement string, args ...any) (int64, error)

	Query(ctx context.Context, statement string, args ...any) (Rows, error)
}

// Rows is the result of a query, as all SQL clients have it.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

// Each runs a query and calls scan for each of its rows.
func Each(ctx context.Context, q Querier, query string, args []any, scan func(Rows) error) error {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// exec runs a statement.
func exec(ctx context.Context, q Querier, statement string) error {
	_, err := q.Exec(ctx, statement)
	return err
}

// number runs a query that returns one number. It reads to the end of the rows:
// where rows are left, the driver of SQL Server asks the server to cancel the
// query. That costs a round trip, and with XACT_ABORT it ends the transaction.
func number(ctx context.Context, q Querier, query string) (n int64, err error) {
	found := false
	err = Each(ctx, q, query, nil, func(rows Rows) error {
		found = true
		return rows.Scan(&n)
	})
	if err == nil && !found {
		err = fmt.Errorf("no row for %q", query)
	}
	return n, err
}

// Access is how the features that all SQL stores share reach the database of
// one of them. Its methods check the tables at their first use. They add the
// errors of package once to those of the client and of this package: ErrInvalid
// to a [Refusal], ErrLeaseLost to a [Lost], ErrConflict where the database
// wants the whole transaction again.
type Access interface {
	// Read calls do with the pool.
	Read(ctx context.Context, do func(Querier) error) error

	// Write calls do with the pool. In SQLite, it waits for its turn to write.
	Write(ctx context.Context, do func(Querier) error) error

	// Transact calls do in a short transaction of the store's own and commits,
	// or rolls back if do fails. The isolation level is READ COMMITTED, so each
	// statement sees what those before it have waited for. Begin, unless it is
	// empty, is a statement for the beginning of the transaction.
	//
	// The transaction gives up after ten seconds, with ErrConflict.
	Transact(ctx context.Context, begin string, do func(context.Context, Querier) error) error
}

// TxAccess is an Access that also works in transactions of the caller's. Tx is
// the client's type of a transaction.
type TxAccess[Tx any] interface {
	Access

	// InTx calls do with a transaction that the caller began and ends.
	InTx(ctx context.Context, tx Tx, do func(Querier) error) error
}
