package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func nothing(pgx.Tx) error { return nil }

func TestTransactCommitsRecordAndRowsTogether(t *testing.T) {
	eachRequest(t, testTransactCommitsRecordAndRowsTogether)
}

func testTransactCommitsRecordAndRowsTogether(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r := newRequest()
	rec, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
		if n := f.count(t, "a"); n != 0 {
			t.Errorf("%d rows are visible before the commit", n)
		}
		wantStatus(t, f, r.Key, once.Absent)
		return f.write(t.Context(), tx, "a")
	})
	if err != nil || rec.Status != once.Running || rec.Attempt != 1 || rec.Owner != r.Owner {
		t.Fatalf("got %+v, %v", rec, err)
	}
	if n := f.count(t, "a"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	got := get(t, f, r.Key)
	if got.Status != once.Done || string(got.Outcome.Body) != "ok" || got.Outcome.Sum != 0xfedcba98 || got.Owner != r.Owner {
		t.Errorf("got %+v", got)
	}
}

func TestTheHandlersErrorRollsBack(t *testing.T) { eachRequest(t, testTheHandlersErrorRollsBack) }

func testTheHandlersErrorRollsBack(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r, boom := newRequest(), errors.New("boom")
	_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
		return errors.Join(f.write(t.Context(), tx, "a"), boom)
	})
	wantError(t, err, boom)
	wantStatus(t, f, r.Key, once.Absent)
	if n := f.count(t, "a"); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
}

func TestTheHandlersPanicRollsBackAndGoesOn(t *testing.T) {
	eachRequest(t, testTheHandlersPanicRollsBackAndGoesOn)
}

func testTheHandlersPanicRollsBackAndGoesOn(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r := newRequest()
	func() {
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v", v)
			}
		}()
		_, _ = transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
			if err := f.write(t.Context(), tx, "a"); err != nil {
				t.Error(err)
			}
			panic("boom")
		})
	}()
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 0 }) // a closed connection is returned to the pool a little later
	rec, err := transact(t.Context(), f.Store, r, nothing)
	if err != nil || rec.Attempt != 1 {
		t.Errorf("afterwards: %+v, %v", rec, err)
	}
	if n := f.count(t, "a"); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
}

// A handler gets the serialization failure itself, and DoTx gets a conflict,
// after which it tries again.
func TestSerializationFailuresOfTheHandlerAreConflicts(t *testing.T) {
	eachRequest(t, testSerializationFailuresOfTheHandlerAreConflicts)
}

func testSerializationFailuresOfTheHandlerAreConflicts(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	for _, state := range []string{"40001", "40P01", "55P03"} {
		_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `DO $$ BEGIN RAISE 'no' USING ERRCODE = '`+state+`'; END $$`)
			return err
		})
		wantError(t, err, once.ErrConflict)
		wantText(t, err, state)
	}
}

func TestTheHandleRefusesToEnd(t *testing.T) { eachRequest(t, testTheHandleRefusesToEnd) }

func testTheHandleRefusesToEnd(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r := newRequest()
	var kept, nested pgx.Tx
	_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) (err error) {
		defer tx.Rollback(t.Context())
		wantError(t, tx.Commit(t.Context()), once.ErrInTx)
		wantError(t, tx.Rollback(t.Context()), once.ErrInTx)
		wantError(t, pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			return errors.Join(f.write(t.Context(), tx, "undone"), once.ErrRejected)
		}), once.ErrRejected)
		if err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "kept") })
		}); err != nil {
			return err
		}
		if kept, nested = tx, nil; true {
			nested, err = tx.Begin(t.Context())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if undone, stayed := f.count(t, "undone"), f.count(t, "kept"); undone != 0 || stayed != 1 {
		t.Errorf("%d rows of the savepoint rolled back, %d of the one released", undone, stayed)
	}
	for _, tx := range []pgx.Tx{kept, nested} {
		wantError(t, f.write(t.Context(), tx, "late"), pgx.ErrTxClosed)
		_, err := tx.Begin(t.Context())
		wantError(t, err, pgx.ErrTxClosed)
	}
}

func TestLargeObjectsInTheHandle(t *testing.T) {
	f := newFixture(t)
	var oid uint32
	_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) (err error) {
		objects := tx.LargeObjects()
		oid, err = objects.Create(t.Context(), 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `SELECT lo_unlink($1)`, oid)
}

func TestASwallowedErrorCommitsNothing(t *testing.T) {
	f := newFixture(t)
	swallow := func(tx pgx.Tx) error {
		if err := f.write(t.Context(), tx, "a"); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT 1 / 0`)
		wantText(t, err, "22012")
		return nil
	}
	check := func(t *testing.T, k once.Key, err error) {
		t.Helper()
		wantText(t, err, "was ignored")
		for _, wrong := range []error{once.ErrOutcomeUnknown, once.ErrConflict, once.ErrLeaseLost} {
			if errors.Is(err, wrong) {
				t.Errorf("%v is %v", err, wrong)
			}
		}
		wantStatus(t, f, k, once.Absent)
		if n := f.count(t, "a"); n != 0 {
			t.Errorf("%d rows, want 0", n)
		}
	}
	t.Run("the settlement fails", func(t *testing.T) {
		r := newRequest()
		_, err := transact(t.Context(), f.Store, r, swallow)
		check(t, r.Key, err)
	})
	t.Run("COMMIT is answered with ROLLBACK", func(t *testing.T) {
		r := newRequest()
		_, err := f.Transact(t.Context(), []once.ClaimRequest{r}, func(tx pgx.Tx, _ []once.Record) ([]once.Settlement, error) {
			return nil, swallow(tx)
		})
		check(t, r.Key, err)
		wantText(t, err, "ROLLBACK")
	})
}

func TestWhatTheHandlerLeavesOpenIsNamed(t *testing.T) {
	eachRequest(t, testWhatTheHandlerLeavesOpenIsNamed)
}

func testWhatTheHandlerLeavesOpenIsNamed(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	for _, c := range []struct {
		name, text string
		status     once.Status
		work       func(pgx.Tx) error
	}{
		{"rows", "still open", once.Absent, func(tx pgx.Tx) error {
			_, err := tx.Query(t.Context(), `SELECT generate_series(1, 100000)`)
			return err
		}},
		{"ROLLBACK as a statement", "ended by a statement", once.Parked, func(tx pgx.Tx) error {
			_, err := tx.Conn().Exec(t.Context(), `ROLLBACK`)
			return err
		}},
		{"a connection closed by an ended context", "connection was lost", once.Absent, func(tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, `SELECT pg_sleep(10)`)
			wantError(t, err, context.DeadlineExceeded)
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequest()
			_, err := transact(t.Context(), f.Store, r, c.work)
			wantText(t, err, c.text)
			if errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("%v is ErrOutcomeUnknown, though nothing was sent", err)
			}
			wantStatus(t, f, r.Key, c.status)
		})
	}
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 0 }) // a closed connection is returned to the pool a little later
}

// A handler can end its transaction on the connection itself. What it wrote may
// be committed, so the next call does not run the work again.
func TestWorkThatLeavesItsTransactionIsDoneOnce(t *testing.T) {
	eachRequest(t, testWorkThatLeavesItsTransactionIsDoneOnce)
}

func testWorkThatLeavesItsTransactionIsDoneOnce(t *testing.T, newRequest func() once.ClaimRequest) {
	for name, c := range map[string]struct {
		sent  string
		fails error
		rows  int
	}{
		"rollback":                {"ROLLBACK", nil, 1},
		"rollback, and fails":     {"ROLLBACK", errors.New("no"), 1},
		"rollback, and conflicts": {"ROLLBACK", once.ErrConflict, 1},
		"commit":                  {"COMMIT", nil, 1},
		"commit, and fails":       {"COMMIT", errors.New("no"), 1},
		"begins anew":             {"ROLLBACK; BEGIN", nil, 0},
		"chains":                  {"COMMIT AND CHAIN", errors.New("no"), 0},
	} {
		for _, rs := range [][]once.ClaimRequest{{newRequest()}, {newRequest(), newRequest()}} {
			t.Run(fmt.Sprint(name, " ", len(rs)), func(t *testing.T) {
				f := newFixture(t)
				for range 2 {
					_, err := f.Transact(t.Context(), rs, func(tx pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
						if _, err := tx.Conn().Exec(t.Context(), c.sent); err != nil {
							return nil, err
						}
						for _, rec := range recs {
							fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
							sets = append(sets, once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour})
						}
						return sets, errors.Join(f.write(t.Context(), tx, "a"), c.fails)
					})
					t.Log(err)
				}
				if n := f.count(t, "a"); n != c.rows {
					t.Errorf("%d rows, want %d", n, c.rows)
				}
				for _, r := range rs {
					wantStatus(t, f, r.Key, once.Parked)
				}
			})
		}
	}
}

// The row of an expired key makes a speculative claim fail, and then no record
// shows why. So the work is called again, and what it does to its second
// transaction is noticed as well.
func TestWorkThatLeavesItsTransactionAfterASpeculationIsDoneOnce(t *testing.T) {
	for name, fails := range map[string]error{"returns": nil, "fails": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			r := newRequest()
			if _, err := transact(t.Context(), f.Store, r, func(pgx.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			must(t, f.admin, `UPDATE `+f.records()+` SET outcome_until = 1, key_until = 1, updated = 1`)
			r.Owner = random()
			r.Speculative, r.Expected = true, &once.Settlement{KeepOutcome: time.Hour, KeepKey: 2 * time.Hour}
			for i := range 2 {
				_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
					conn := tx.Conn()
					err := f.write(t.Context(), tx, "a")
					if _, ended := conn.Exec(t.Context(), `COMMIT; BEGIN`); ended != nil || err != nil {
						return errors.Join(err, ended)
					}
					return fails
				})
				if i == 0 {
					wantError(t, err, once.ErrParked)
				}
			}
			if n := f.count(t, "a"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
			wantStatus(t, f, r.Key, once.Parked)
		})
	}
}

// Prepared statements are checked as well, at any depth of nesting.
func TestAPreparedRollbackIsRefused(t *testing.T) {
	f := newFixture(t)
	_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
		nested, err := tx.Begin(t.Context())
		if err != nil {
			return err
		}
		for _, of := range []pgx.Tx{tx, nested} {
			_, err := of.Prepare(t.Context(), "end", `ROLLBACK`)
			wantError(t, err, once.ErrInTx)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTheCallersContextDoesNotEndTheTransaction(t *testing.T) {
	eachRequest(t, testTheCallersContextDoesNotEndTheTransaction)
}

func testTheCallersContextDoesNotEndTheTransaction(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := transact(ctx, f.Store, newRequest(), func(tx pgx.Tx) error {
		cancel()
		return f.write(t.Context(), tx, "a")
	})
	if n := f.count(t, "a"); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// commitFault makes COMMIT fail, by a deferred constraint trigger.
func commitFault(t *testing.T, f *fixture, statement string) {
	must(t, f.admin, `CREATE FUNCTION `+f.schema+`.fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+statement+`; RETURN NULL; END $$`)
	must(t, f.admin, `CREATE CONSTRAINT TRIGGER fault AFTER INSERT ON `+f.effects()+
		` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION `+f.schema+`.fault()`)
}

func TestErrorsOfCommit(t *testing.T) {
	for _, c := range []struct {
		name, statement, state string
		want                   error // nil: none of the two
	}{
		{"serialization failure", `RAISE 'no' USING ERRCODE = '40001'`, "40001", once.ErrConflict},
		{"deadlock", `RAISE 'no' USING ERRCODE = '40P01'`, "40P01", once.ErrConflict},
		{"completion unknown", `RAISE 'no' USING ERRCODE = '40003'`, "40003", once.ErrOutcomeUnknown},
		{"constraint", `RAISE 'no' USING ERRCODE = '23505'`, "23505", nil},
		{"terminated", `PERFORM pg_terminate_backend(pg_backend_pid())`, "57P01", once.ErrOutcomeUnknown},
		{"disk full", `RAISE 'no' USING ERRCODE = '53100'`, "53100", once.ErrOutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			commitFault(t, f, c.statement)
			r := newRequest()
			_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "a") })
			wantText(t, err, c.state)
			for _, kind := range []error{once.ErrConflict, once.ErrOutcomeUnknown} {
				if errors.Is(err, kind) != (kind == c.want) {
					t.Errorf("errors.Is(%v, %v) is %t", err, kind, errors.Is(err, kind))
				}
			}
			wantStatus(t, f, r.Key, once.Absent)
		})
	}
}

// If the connection breaks under work that has used it directly, the check
// after the work finds that, and no COMMIT is sent.
func TestABackendTerminatedBeforeTheSettlement(t *testing.T) {
	eachRequest(t, testABackendTerminatedBeforeTheSettlement)
}

func testABackendTerminatedBeforeTheSettlement(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay"}
	terminate := func(ctx context.Context, tx pgx.Tx) error {
		_, err := f.admin.Exec(ctx, `SELECT pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
		return err
	}
	_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { return terminate(t.Context(), tx) })
	wantError(t, err, once.ErrConflict)

	runs := 0
	answer, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		if runs++; runs == 1 {
			return 7, errors.Join(f.write(ctx, tx, "a"), terminate(ctx, tx))
		}
		return 7, f.write(ctx, tx, "a")
	})
	if n := f.count(t, "a"); err != nil || answer != 7 || n != 1 || runs != 2 {
		t.Errorf("got %d, %v after %d runs, %d rows", answer, err, runs, n)
	}
}

// If the connection is lost at COMMIT, DoTx has one effect, and returns its
// result.
func TestLostCommits(t *testing.T) { eachRequest(t, testLostCommits) }

func testLostCommits(t *testing.T, newRequest func() once.ClaimRequest) {
	op := &once.Operation[string]{Name: "pay"}
	for name, lose := range map[string]int32{"request": loseRequest, "reply": loseReply} {
		t.Run(name, func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(pgx.QueryExecModeExec))

			r := newRequest()
			w.lose.Store(lose)
			_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "direct") })
			wantError(t, err, once.ErrOutcomeUnknown)
			if n := f.count(t, "direct"); n != int(lose)-1 {
				t.Errorf("%d rows: the test did not do what it says", n)
			}

			runs := 0
			w.lose.Store(lose)
			answer, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
				runs++
				return "paid", f.write(ctx, tx, "guarded")
			})
			if err != nil || answer != "paid" {
				t.Errorf("got %q, %v", answer, err)
			}
			if n := f.count(t, "guarded"); n != 1 || runs > 2 {
				t.Errorf("%d rows after %d runs", n, runs)
			}
		})
	}
}

func TestRoundTrips(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		t.Run(m.String(), func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(m), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
			trips := func(work func()) int64 {
				work()
				before := w.trips.Load()
				work()
				return w.trips.Load() - before
			}
			var r once.ClaimRequest
			if n := trips(func() { r = newRequest(); _, _ = f.Claim(t.Context(), r) }); n != 1 {
				t.Errorf("a claim takes %d round trips, want 1", n)
			}
			if n := trips(func() { _, _ = f.Claim(t.Context(), r) }); n != 2 {
				t.Errorf("a duplicate takes %d round trips, want 2", n)
			}
			rec := get(t, f, r.Key)
			_ = f.Settle(t.Context(), done(rec, ""))
			if n := trips(func() { _ = f.Settle(t.Context(), done(rec, "")) }); n != 2 {
				t.Errorf("a repeated settlement takes %d round trips, want 2", n)
			}
			if n := trips(func() { _, _ = f.Claim(t.Context(), r) }); n != 1 {
				t.Errorf("a replay among many takes %d round trips, want 1", n)
			}
			f.testRoundTripsOfTheCaller(t, r, trips)
			if n := trips(func() { _, _ = transact(t.Context(), f.Store, newRequest(), nothing) }); n != 2 {
				t.Errorf("a transaction takes %d round trips beside its work, want 2", n)
			}
			if n := trips(func() { _, _ = transact(t.Context(), f.Store, r, nothing) }); n != 2 {
				t.Errorf("a transaction that is a replay takes %d round trips, want 2", n)
			}
			if n := trips(func() { _, _ = transact(t.Context(), f.Store, newForeseen(), nothing) }); n != 2 {
				t.Errorf("a transaction whose end is foreseen takes %d round trips beside its work, want 2", n)
			}
			r.Expected = newForeseen().Expected
			if n := trips(func() { _, _ = transact(t.Context(), f.Store, r, nothing) }); n != 3 {
				t.Errorf("a replay that was not expected takes %d round trips, want 3", n)
			}
			if n := trips(func() { _, _ = transact(t.Context(), f.Store, r, nothing) }); n != 1 {
				t.Errorf("a replay among many takes %d round trips, want 1", n)
			}
		})
	}
}

// testRoundTripsOfTheCaller counts those of a claim and its settlement in a
// transaction of the caller. r is done.
func (f *fixture) testRoundTripsOfTheCaller(t *testing.T, r once.ClaimRequest, trips func(func()) int64) {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	claim := func(r once.ClaimRequest) once.Record {
		recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
		if err != nil {
			t.Fatal(err)
		}
		return recs[0]
	}
	var rec once.Record
	if n := trips(func() { rec = claim(newRequest()) }); n != 1 {
		t.Errorf("a claim in a transaction takes %d round trips, want 1", n)
	}
	set := done(rec, "")
	if n := trips(func() {
		if err := f.SettleTx(t.Context(), tx, []once.Settlement{set}); err != nil {
			t.Fatal(err)
		}
		set = done(claim(newRequest()), "")
	}); n != 2 {
		t.Errorf("a settlement and a claim in a transaction take %d round trips, want 2", n)
	}
	if n := trips(func() { claim(r) }); n != 2 {
		t.Errorf("a duplicate in a transaction takes %d round trips, want 2", n)
	}
	claim(r)
	if n := trips(func() { claim(r) }); n != 1 {
		t.Errorf("a duplicate among many takes %d round trips in a transaction, want 1", n)
	}
}

func TestDuplicatesOfATransaction(t *testing.T) {
	f := newFixture(t)
	storm(t, f, f.Store, f.again(t), f.again(t, mode(pgx.QueryExecModeSimpleProtocol)), f.again(t))
}

// storm sends 32 duplicates to the stores, which must have one effect.
func storm(t *testing.T, f *fixture, stores ...*pgstore.Store) {
	t.Helper()
	name := fmt.Sprintf("%x", random())
	op := &once.Operation[int]{Name: "pay", Policy: once.Policy{Wait: 20 * time.Second}}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			answer, err := once.DoTx(t.Context(), stores[i%len(stores)], op.For(name), func(ctx context.Context, tx pgx.Tx) (int, error) {
				return 7, f.write(ctx, tx, name)
			})
			if err != nil || answer != 7 {
				t.Errorf("got %d, %v", answer, err)
			}
		}()
	}
	wg.Wait()
	if n := f.count(t, name); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}
