package sqlstore_test

import (
	"context"
	"database/sql"
	"reflect"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lossrate"
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

// TestContractOfNewKeys is TestContract on PostgreSQL, where each claim expects a
// new key. The suite has so many duplicates that a store soon expects nothing
// else, and then claims a new key by another statement.
func TestContractOfNewKeys(t *testing.T) {
	e := engine{"postgres", sqlstore.PostgreSQL, freshPostgres}
	open := e.fresh(t)
	db := open(t)
	must(t, sqlstore.New(db, e.dialect, nil).Migrate(t.Context()))
	mustExec(t, db, effectTable)
	h := harness(db, e, nil)
	h.Open = func(t testing.TB) once.TxStore[*sql.Tx] { return forgetful{sqlstore.New(open(t), e.dialect, nil)} }
	storetest.RunTx(t, h)
}

// forgetful is a store that forgets before each claim how many were lost.
type forgetful struct{ *sqlstore.Store }

// forget reaches into the store, because this module is apart from it: the root
// module has no driver of PostgreSQL.
func (s forgetful) forget() {
	losses := reflect.ValueOf(s.Store).Elem().FieldByName("database").Elem().FieldByName("losses")
	(*lossrate.Rate)(losses.Addr().UnsafePointer()).Expect(false)
}

func (s forgetful) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	s.forget()
	return s.Store.Claim(ctx, r)
}

func (s forgetful) ClaimTx(ctx context.Context, tx *sql.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	s.forget()
	return s.Store.ClaimTx(ctx, tx, rs)
}

func (s forgetful) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*sql.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	s.forget()
	return s.Store.Transact(ctx, rs, body)
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
		Damages:      damages(db, e),
		Patience:     30 * time.Second,             // on a busy machine
		Slow:         e.dialect == sqlstore.SQLite, // under -race
	}
}
