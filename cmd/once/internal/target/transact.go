package target

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
)

// Bare runs a statement in a transaction without package once.
func (t *Target) Bare(ctx context.Context, statement string) error { return t.bare(ctx, statement) }

// Guarded runs a statement in [once.DoTx].
func (t *Target) Guarded(ctx context.Context, w once.Work[struct{}], statement string) error {
	return t.guarded(ctx, w, statement)
}

func guarded[Tx any](s once.TxStore[Tx], exec func(context.Context, Tx, string) error,
) func(context.Context, once.Work[struct{}], string) error {
	return func(ctx context.Context, w once.Work[struct{}], statement string) error {
		_, err := once.DoTx(ctx, s, w, func(ctx context.Context, tx Tx) (nothing struct{}, err error) {
			return nothing, exec(ctx, tx, statement)
		})
		return err
	}
}

func barePostgres(pool *pgxpool.Pool) func(context.Context, string) error {
	return func(ctx context.Context, statement string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return execPostgres(ctx, tx, statement) })
	}
}

func execPostgres(ctx context.Context, tx pgx.Tx, statement string) error {
	_, err := tx.Exec(ctx, statement)
	return err
}

func bareSQL(db *sql.DB) func(context.Context, string) error {
	return func(ctx context.Context, statement string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := execSQL(ctx, tx, statement); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func execSQL(ctx context.Context, tx *sql.Tx, statement string) error {
	_, err := tx.ExecContext(ctx, statement)
	return err
}
