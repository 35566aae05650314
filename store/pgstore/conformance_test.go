package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/jackc/pgx/v5"
)

func TestConformance(t *testing.T) {
	t.Run("direct", func(t *testing.T) {
		f := newFixture(t)
		conform(t, f, false, func(t testing.TB) *pgstore.Store { return f.again(t) })
	})
	t.Run("PgBouncer", func(t *testing.T) {
		f := newFixture(t)
		conform(t, f, false, func(t testing.TB) deaf {
			return deaf{Store: pgstore.New(pool(t, bouncer(t), mode(pgx.QueryExecModeExec)), &pgstore.Options{Schema: f.schema})}
		})
	})
}

// deaf is a store without a method that never works behind PgBouncer.
type deaf struct {
	*pgstore.Store
	HearOutbox struct{}
}

func conform[Store once.TxStore[pgx.Tx]](t *testing.T, f *fixture, together bool, open func(testing.TB) Store) {
	storetest.RunTx(t, storetest.TxHarness[pgx.Tx]{
		Open:         func(t testing.TB) once.TxStore[pgx.Tx] { return open(t) },
		Begin:        f.pool.Begin,
		Commit:       func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback:     func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Effect:       f.write,
		SeesInFlight: true,
		Patience:     30 * time.Second, // on a machine that does much else

		ForgetsTogether: together,
		Count: func(ctx context.Context, name string) (n int, err error) {
			err = f.admin.QueryRow(ctx, `SELECT count(*) FROM `+f.effects()+` WHERE name = $1`, name).Scan(&n)
			return n, err
		},
	})
}
