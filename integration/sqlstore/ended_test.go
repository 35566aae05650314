package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/sqlstore"
)

var errWork = errors.New("the work failed")

// endings are statements by which a handler ends its transaction, against the
// rules, before it continues. Its later writes may be committed whatever the
// result of the call.
var endings = []struct {
	name       string
	statements []string
	not        []sqlstore.Dialect // dialects in which it fails, does nothing, or is not noticed
}{
	{"rollback", []string{"ROLLBACK"}, nil},
	{"abort", []string{"ABORT"}, []sqlstore.Dialect{sqlstore.MySQL, sqlstore.SQLite}},
	{"commit", []string{"COMMIT"}, nil},
	{"end", []string{"END"}, []sqlstore.Dialect{sqlstore.MySQL}},
	{"begin", []string{"BEGIN"}, []sqlstore.Dialect{sqlstore.PostgreSQL, sqlstore.SQLite}},
	{"start", []string{"START TRANSACTION"}, []sqlstore.Dialect{sqlstore.PostgreSQL, sqlstore.SQLite}},
	{"definition", []string{"CREATE TABLE ended (n int)"}, []sqlstore.Dialect{sqlstore.PostgreSQL, sqlstore.SQLite}},
	{"rollback and begin", []string{"ROLLBACK", "INSERT INTO effect (name) VALUES ('between')", "BEGIN"},
		[]sqlstore.Dialect{sqlstore.MySQL}}, // where it looks like a deadlock, as the package doc says
	{"commit and begin", []string{"COMMIT", "BEGIN"}, nil},
}

// No row is written twice, whatever statement the work sends, however it
// continues, and however often the call is repeated.
func TestWorkThatEndsItsTransactionInSQL(t *testing.T) {
	for name, result := range map[string]error{"succeeds": nil, "fails": errWork, "conflict": fmt.Errorf("%w: deadlock", once.ErrConflict)} {
		limit := proof.Patience
		if result != nil && result != errWork { // conflicts are retried until ctx ends
			limit = 2 * time.Second
		}
		for _, ending := range endings {
			t.Run(ending.name+" and "+name, func(t *testing.T) {
				onEach(t, func(t *testing.T, e engine) {
					for _, d := range ending.not {
						if d == e.dialect {
							t.Skip("not here")
						}
					}
					s, db := e.migrated(t)
					for range 3 {
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						_, err := once.DoTx(ctx, s, books.For("1"), ends(ending.statements, result))
						cancel()
						t.Log(err)
						if _, again := once.MayRetry(err); again && errors.Is(err, once.ErrParked) {
							t.Errorf("MayRetry(%v) is true", err)
						}
					}
					rows, between := count(t, db, "after"), count(t, db, "between")
					if rows > 1 || between > 1 {
						t.Errorf("%d rows were written after it, and %d in between: the work was done more than once", rows, between)
					}
					rec, err := s.Get(t.Context(), books.For("1").Key())
					must(t, err)
					if done := rec.Status == once.Done || rec.Status == once.Parked; !done && rows+between > 0 {
						t.Errorf("rows are there, and the key is %v", rec.Status)
					}
					if rec.Status == once.Parked && !strings.Contains(rec.Reason, "ended") {
						t.Errorf("the reason is %q", rec.Reason)
					}
					idle(t, db)
					lives(t, s)
				})
			})
		}
	}
}

// The context ends during an INSERT. SQLite then rolls back the transaction.
func TestWorkWhoseWriteIsInterruptedCanBeRepeated(t *testing.T) {
	const endless = `INSERT INTO effect (name) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'before' || i FROM n`
	s, db := engines[0].migrated(t)
	_, err := once.DoTx(t.Context(), s, books.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err := tx.ExecContext(limited, endless)
		return "", err
	})
	if err == nil || errors.Is(err, once.ErrParked) {
		t.Errorf("the interrupted call has ended with %v", err)
	}
	_, err = once.DoTx(t.Context(), s, books.For("1"), ends(nil, nil))
	must(t, err)
	if n := count(t, db, "after"); n != 1 {
		t.Errorf("%d rows were written by the second call", n)
	}
	idle(t, db)
}

func ends(statements []string, result error) func(context.Context, *sql.Tx) (string, error) {
	return func(ctx context.Context, tx *sql.Tx) (string, error) {
		for _, statement := range append(statements, "INSERT INTO effect (name) VALUES ('after')") {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return "", err
			}
		}
		return "done", result
	}
}

func TestWorkThatEndsItsTransactionAndPanics(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for range 2 {
			func() {
				defer func() { recover() }()
				_, _ = once.DoTx(t.Context(), s, books.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
					_, err := ends([]string{"COMMIT"}, nil)(ctx, tx)
					must(t, err)
					_, err = tx.ExecContext(ctx, "COMMIT") // MariaDB would roll back what comes after the first
					panic(err)
				})
			}()
		}
		if rows := count(t, db, "after"); rows > 1 {
			t.Errorf("%d rows were written", rows)
		}
		idle(t, db)
	})
}

// lateKeys are keys that a late request claims. One that was released has a row
// already, whose Created stays.
var lateKeys = map[string]func(*testing.T, *sqlstore.Store){
	"a new key": func(*testing.T, *sqlstore.Store) {},
	"a released key": func(t *testing.T, s *sqlstore.Store) {
		rec, err := s.Claim(t.Context(), request("1", "before"))
		must(t, err)
		must(t, s.Settle(t.Context(), once.Settlement{Fence: hold(rec), Status: once.Absent, KeepKey: time.Hour}))
	},
}

// onLateKeys runs a test with each kind of key, on each engine.
func onLateKeys(t *testing.T, test func(*testing.T, engine, *sqlstore.Store, *sql.DB)) {
	for name, prepare := range lateKeys {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e engine) {
				s, db := e.migrated(t)
				prepare(t, s)
				test(t, e, s, db)
			})
		})
	}
}

// A request with the same token that was late on its way may claim the key as soon
// as the transaction is rolled back. That is no commit by the work.
func TestALateClaimAfterARollbackIsNotTakenForACommitByTheWork(t *testing.T) {
	onLateKeys(t, func(t *testing.T, e engine, plain *sqlstore.Store, db *sql.DB) {
		late := 0
		s := sqlstore.New(hooked(t, db, func(_ context.Context, query string) func() {
			return func() {
				if query == "ROLLBACK" {
					late++
					claimLate(t, plain)
				}
			}
		}), e.dialect, nil)
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request("1", "a")},
			func(*sql.Tx, []once.Record) ([]once.Settlement, error) { return nil, errWork })
		if !errors.Is(err, errWork) || errors.Is(err, once.ErrParked) || late != 1 {
			t.Errorf("after %d late requests, the work ended with %v", late, err)
		}
		wantStatus(t, s, once.Running)
	})
}

// Work that has rolled back its transaction writes on without one. A late request
// that claims the key meanwhile does not hide that.
func TestALateClaimDoesNotHideThatTheWorkHasRolledBack(t *testing.T) {
	onLateKeys(t, func(t *testing.T, e engine, s *sqlstore.Store, db *sql.DB) {
		if e.dialect == sqlstore.MySQL {
			t.Skip("there it looks like a deadlock, as the package doc says")
		}
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request("1", "a")}, func(tx *sql.Tx, _ []once.Record) ([]once.Settlement, error) {
			if _, err := tx.ExecContext(t.Context(), "ROLLBACK"); err != nil {
				return nil, err
			}
			claimLate(t, sqlstore.New(db, e.dialect, nil)) // which does not wait for the turn of s
			_, err := tx.ExecContext(t.Context(), "INSERT INTO effect (name) VALUES ('after')")
			must(t, err)
			return nil, errWork
		})
		if !errors.Is(err, once.ErrParked) {
			t.Errorf("the work wrote outside of its transaction, and ended with %v", err)
		}
		wantStatus(t, s, once.Parked)
	})
}

// Work that commits its transaction itself, and then fails, is parked, also if its
// key was not new.
func TestACommitByTheWorkIsNoticedOnEachKey(t *testing.T) {
	onLateKeys(t, func(t *testing.T, _ engine, s *sqlstore.Store, db *sql.DB) {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request("1", "a")}, func(tx *sql.Tx, _ []once.Record) ([]once.Settlement, error) {
			_, err := ends([]string{"COMMIT"}, errWork)(t.Context(), tx)
			return nil, err
		})
		if !errors.Is(err, once.ErrParked) {
			t.Errorf("the work has committed its transaction, and ended with %v", err)
		}
		wantStatus(t, s, once.Parked)
	})
}

func claimLate(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	rec, err := s.Claim(t.Context(), request("1", "a"))
	if must(t, err); rec.Owner != token("a") {
		t.Errorf("the late request found %+v", rec)
	}
}

func wantStatus(t *testing.T, s *sqlstore.Store, want once.Status) {
	t.Helper()
	if rec, err := s.Get(t.Context(), key("1")); err != nil || rec.Status != want {
		t.Errorf("the key is %v, %q (%v), want %v", rec.Status, rec.Reason, err, want)
	}
}
