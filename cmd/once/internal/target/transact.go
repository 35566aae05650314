package target

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
)

// Statement is SQL with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Bare runs statements in a transaction without package once.
func (t *Tables) Bare(ctx context.Context, statements ...Statement) error {
	return t.bare(ctx, statements)
}

// Guarded runs a statement in [once.DoTx].
func (t *Tables) Guarded(ctx context.Context, w once.Work[struct{}], statement Statement) error {
	return t.guarded(ctx, w, statement)
}

func guarded[Tx any](s once.TxStore[Tx], exec func(context.Context, Tx, Statement) error,
) func(context.Context, once.Work[struct{}], Statement) error {
	return func(ctx context.Context, w once.Work[struct{}], statement Statement) error {
		_, err := once.DoTx(ctx, s, w, func(ctx context.Context, tx Tx) (nothing struct{}, err error) {
			return nothing, exec(ctx, tx, statement)
		})
		return err
	}
}

func barePostgres(pool *pgxpool.Pool) func(context.Context, []Statement) error {
	return func(ctx context.Context, statements []Statement) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for _, st := range statements {
				if err := execPostgres(ctx, tx, st); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func execPostgres(ctx context.Context, tx pgx.Tx, st Statement) error {
	_, err := tx.Exec(ctx, st.SQL, st.Args...)
	return err
}

func bareSQL(db *sql.DB) func(context.Context, []Statement) error {
	return func(ctx context.Context, statements []Statement) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for _, st := range statements {
			if err := execSQL(ctx, tx, st); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
}

func execSQL(ctx context.Context, tx *sql.Tx, st Statement) error {
	_, err := tx.ExecContext(ctx, st.SQL, st.Args...)
	return err
}
