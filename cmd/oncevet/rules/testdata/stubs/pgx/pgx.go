// Package pgx has what the tests need of the package of this name.
package pgx

import "context"

type Row interface{ Scan(dest ...any) error }

type CommandTag struct{}

type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) Row
}
