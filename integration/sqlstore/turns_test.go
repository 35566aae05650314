package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// In SQLite without a busy_timeout, a second writer is an error at once.
func TestWritersOfOneStoreDoNotMeet(t *testing.T) {
	db := freshSQLite(t)(t, "_pragma=busy_timeout(0)", "_pragma=journal_mode(WAL)", "_pragma=synchronous(OFF)", "_txlock=immediate")
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 10 {
				id := fmt.Sprint(i, "-", n)
				_, err := s.Transact(t.Context(), []once.ClaimRequest{request(id, "a")}, writing(t.Context(), "turn"))
				rec, claimed := s.Claim(t.Context(), request("other "+id, "a"))
				settled := s.Settle(t.Context(), settlement(rec, once.Done))
				_, forgot := s.Forget(t.Context(), 10)
				if err := errors.Join(err, claimed, settled, forgot); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, db, "turn"); n != 80 {
		t.Errorf("%d rows, want 80", n)
	}
}

// The calls that a handler makes outside its transaction are refused as busy.
func TestAHandlerThatUsesTheStoreDoesNotWaitForItself(t *testing.T) {
	db := freshSQLite(t)(t, "_pragma=busy_timeout(10)", "_pragma=journal_mode(WAL)", "_pragma=synchronous(OFF)", "_txlock=immediate")
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	_, err := once.DoTx(t.Context(), s, books.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		if _, err := s.Claim(ctx, request("inside", "a")); !errors.Is(err, once.ErrConflict) {
			t.Errorf("Claim in a transaction returned %v, want ErrConflict", err)
		}
		brief, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := s.Claim(brief, request("inside", "a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Claim with a context of its own returned %v, want its end", err)
		}
		_, err := once.InTx(ctx, s, tx, books.For("2"), func(context.Context) (string, error) { return "done", effect(ctx, tx, "in") })
		return "done", err
	})
	must(t, err)
	if n := count(t, db, "in"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}
