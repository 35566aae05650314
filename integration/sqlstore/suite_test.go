package sqlstore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/effectively-once/once/store/storetest"
)

func TestContract(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		open := e.fresh(t)
		db := open(t)
		must(t, sqlstore.New(db, e.dialect, nil).Migrate(t.Context()))
		mustExec(t, db, effectTable)
		storetest.RunTx(t, harness(db, e, func(t testing.TB) *sql.DB { return open(t) }))
	})
}

// harness gives the suite a store. The suite uses db for its own statements.
func harness(db *sql.DB, e engine, open func(testing.TB) *sql.DB) storetest.TxHarness[*sql.Tx] {
	return storetest.TxHarness[*sql.Tx]{
		Open: func(t testing.TB) once.TxStore[*sql.Tx] {
			return sqlstore.New(open(t), e.dialect, nil)
		},
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		Effect:   effect,
		Count: func(ctx context.Context, name string) (n int, err error) {
			err = db.QueryRowContext(ctx, "SELECT count(*) FROM effect WHERE name = '"+name+"'").Scan(&n)
			return n, err
		},
		SeesInFlight: e.dialect == sqlstore.PostgreSQL,
		Patience:     30 * time.Second,             // on a busy machine
		Slow:         e.dialect == sqlstore.SQLite, // under -race
	}
}
