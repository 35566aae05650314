package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// unreachable is a database that fails the test if it is connected to.
type unreachable struct{ t *testing.T }

func (u unreachable) Connect(context.Context) (driver.Conn, error) {
	u.t.Error("the database was called")
	return nil, errors.New("unreachable")
}

func (u unreachable) Driver() driver.Driver { return nil }

func TestEveryMethodRefusesInvalidArgumentsOfNew(t *testing.T) {
	db := sql.OpenDB(unreachable{t})
	defer db.Close()
	for name, s := range map[string]*sqlstore.Store{
		"no database": sqlstore.New(nil, sqlstore.SQLite, nil),
		"no dialect":  sqlstore.New(db, 0, nil),
		"prefix":      sqlstore.New(db, sqlstore.MySQL, &sqlstore.Options{Prefix: "a b"}),
		"schema":      sqlstore.New(db, sqlstore.PostgreSQL, &sqlstore.Options{Schema: `"`}),
		"no schemas":  sqlstore.New(db, sqlstore.SQLite, &sqlstore.Options{Schema: "main"}),
	} {
		for method, err := range callAll(t.Context(), s) {
			if !errors.Is(err, once.ErrInvalid) {
				t.Errorf("%s: %s returned %v, want ErrInvalid", name, method, err)
			}
		}
		if o := s.Options(); o == nil || o != s.Options() {
			t.Errorf("%s: Options are not always the same", name)
		}
	}
}

func callAll(ctx context.Context, s *sqlstore.Store) map[string]error {
	all := map[string]error{"Migrate": s.Migrate(ctx), "Extend": s.Extend(ctx, once.Fence{}, 0),
		"Settle": s.Settle(ctx, once.Settlement{}), "SettleTx": s.SettleTx(ctx, nil, nil)}
	_, all["Claim"] = s.Claim(ctx, once.ClaimRequest{})
	_, all["ClaimTx"] = s.ClaimTx(ctx, nil, nil)
	_, all["Transact"] = s.Transact(ctx, nil, nil)
	_, all["Get"] = s.Get(ctx, once.Key{})
	_, all["Forget"] = s.Forget(ctx, 1)
	_, all["List"] = s.List(ctx, once.RecordQuery{})
	all["PutTx"] = s.PutTx(ctx, nil, nil)
	all["ReleaseLanes"] = s.ReleaseLanes(ctx, [16]byte{}, nil)
	_, all["LeaseLanes"] = s.LeaseLanes(ctx, [16]byte{1}, 0, nil)
	_, all["Outgoing"] = s.Outgoing(ctx, store.OutgoingQuery{Lanes: []int{1}})
	_, all["Sent"] = s.Sent(ctx, [16]byte{}, nil, store.Delete)
	_, all["MoveOutgoing"] = s.MoveOutgoing(ctx, [16]byte{}, nil, store.Held)
	_, _, all["WakeDelayed"] = s.WakeDelayed(ctx, [16]byte{}, store.Pending, 1)
	_, all["RemoveOutgoing"] = s.RemoveOutgoing(ctx, [16]byte{}, nil)
	_, all["ForgetOutgoing"] = s.ForgetOutgoing(ctx, 0, 1)
	_, all["OutboxDepth"] = s.OutboxDepth(ctx, 1)
	_, all["HearOutbox"] = s.HearOutbox(ctx)
	_, all["AppearRelay"] = s.AppearRelay(ctx)
	return all
}

func TestInvalidArgumentsAreRefused(t *testing.T) {
	db := sql.OpenDB(unreachable{t})
	defer db.Close()
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	_, forgot := s.Forget(t.Context(), 0)
	_, claimed := s.ClaimTx(t.Context(), nil, nil)
	for _, err := range []error{forgot, claimed, s.SettleTx(t.Context(), nil, nil), s.PutTx(t.Context(), nil, nil)} {
		if !errors.Is(err, once.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	}
}

func TestSchemaPrintsWhatMigrateRuns(t *testing.T) {
	text, err := sqlstore.Schema(sqlstore.PostgreSQL, &sqlstore.Options{Schema: "app", Prefix: "o_"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`CREATE SCHEMA IF NOT EXISTS "app"`, `CREATE TABLE "app"."o_record"`, "-- version 2: indexes", "COMMIT;"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if later, err := sqlstore.Schema(sqlstore.PostgreSQL, nil, 1); err != nil || strings.Contains(later, `CREATE TABLE "once_record"`) {
		t.Errorf("from version 1 on: %v\n%s", err, later)
	}
	if _, err := sqlstore.Schema(sqlstore.SQLite, &sqlstore.Options{Prefix: "-"}, 0); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}
