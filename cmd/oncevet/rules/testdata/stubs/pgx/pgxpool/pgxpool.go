package pgxpool

import (
	"context"

	"github.com/jackc/pgx/v5"
)

type Pool struct{}

func (*Pool) Exec(ctx context.Context, sql string, args ...any) (pgx.CommandTag, error) { panic(0) }
func (*Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row             { panic(0) }
func (*Pool) Begin(ctx context.Context) (pgx.Tx, error)                                 { panic(0) }
func (*Pool) Ping(ctx context.Context) error                                            { panic(0) }
