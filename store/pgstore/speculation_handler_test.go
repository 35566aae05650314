package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func one(cfg *pgxpool.Config) { cfg.MaxConns = 1 }

// If another call commits between the snapshot and the lock of lookSQL, the
// handler sees its rows and fails, and the caller gets the first result.
func TestALoserWhoseLookIsOlderThanItsLockIsAnswered(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `CREATE UNIQUE INDEX ON `+f.effects()+` (name)`)
	// The loser takes its lock late: its search_path has a function that waits
	// first.
	must(t, f.admin, `CREATE FUNCTION `+f.schema+`.pg_try_advisory_xact_lock(n bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS
		$$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(hashtext('`+f.schema+`')); RETURN pg_catalog.pg_try_advisory_xact_lock(n); END $$`)
	slow := f.again(t, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = f.schema + ",pg_catalog"
	})
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	run := func(s *pgstore.Store, n int) (int, error) {
		return once.DoTx(t.Context(), s, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
			return n, f.write(ctx, tx, "order")
		})
	}
	gate, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Rollback(t.Context())
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtext($1))`, f.schema); err != nil {
		t.Fatal(err)
	}
	type reply struct {
		n   int
		err error
	}
	loser := make(chan reply, 1)
	go func() { n, err := run(slow, 2); loser <- reply{n, err} }()
	waitFor(t, func() bool {
		var n int
		err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()`, f.schema).Scan(&n)
		return err == nil && n == 1
	})
	if n, err := run(f.Store, 1); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	_ = gate.Rollback(t.Context())
	if got := <-loser; got.n != 1 || got.err != nil {
		t.Errorf("the loser got %d, %v, want the first answer, 1", got.n, got.err)
	}
}

// A transaction that is kept from a handler that panicked before its first
// statement is closed.
func TestAHandleKeptAfterAPanicIsClosed(t *testing.T) {
	for _, how := range []string{"panic", "goexit"} {
		t.Run(how, func(t *testing.T) {
			f := newFixture(t, one)
			op := &once.Operation[int]{Name: "pay", Speculative: true}
			var kept pgx.Tx
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, _ = once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
					kept = tx
					if how == "goexit" {
						runtime.Goexit()
					}
					panic("boom")
				})
			}()
			<-done
			// Another transaction uses the connection now.
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = f.write(t.Context(), kept, "stray")
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("the handle that was kept: %v, want %v", err, pgx.ErrTxClosed)
			}
			_ = tx.Commit(t.Context())
			if n := f.count(t, "stray"); n != 0 {
				t.Errorf("%d rows were committed by another's transaction; the record is %v", n, get(t, f, op.For("1").Key()).Status)
			}
		})
	}
}

// Concurrent duplicates of a key that is done all get its result.
func TestDuplicatesOfADoneKeyAreAnswered(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[struct{}]{Name: "pay", Speculative: true, Policy: once.Policy{Wait: once.NoWait}}
	run := func(ctx context.Context, tx pgx.Tx) (struct{}, error) { return struct{}{}, f.write(ctx, tx, "a") }
	if _, err := once.DoTx(t.Context(), f.Store, op.For("1"), run); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var bad, all atomic.Int64
	stop := time.Now().Add(time.Second)
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for time.Now().Before(stop) {
				all.Add(1)
				s := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema}) // one that has lost no claim lately
				if _, err := once.DoTx(t.Context(), s, op.For("1"), run); err != nil {
					bad.Add(1)
				}
			}
		}()
	}
	wg.Wait()
	if n := bad.Load(); n > 0 {
		t.Errorf("%d of %d duplicates of a key that is done were not answered", n, all.Load())
	}
}

// The call succeeds although the connection is lost while BEGIN and the claim
// are sent.
func TestAConnectionLostAtTheClaim(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprint("speculative ", early), func(t *testing.T) {
			f := newFixture(t, one)
			op := &once.Operation[int]{Name: "pay", Speculative: true}
			var pid uint32
			kill := func() {
				must(t, f.admin, `SELECT pg_terminate_backend($1)`, pid)
				waitFor(t, func() bool {
					var n int
					_ = f.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&n)
					return n == 0
				})
			}
			_ = f.pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error { pid = c.Conn().PgConn().PID(); return nil })
			if _, err := f.Get(t.Context(), op.For("0").Key()); err != nil {
				t.Fatal(err)
			}
			runs := 0
			w := op.For("1")
			if !early {
				kill()
			}
			n, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
				if runs++; runs == 1 && early {
					kill()
				}
				return 7, f.write(ctx, tx, "a")
			})
			if err != nil || n != 7 {
				t.Errorf("got %d, %v after %d runs", n, err, runs)
			}
		})
	}
}

// An error of Scan closes the rows, so that the handler can send more
// statements.
func TestAScanErrorLeavesTheConnectionFree(t *testing.T) {
	f := newFixture(t)
	for _, redelivered := range []bool{true, false} {
		op := &once.Operation[int]{Name: "pay", Speculative: true}
		w := op.For(fmt.Sprint(redelivered))
		if redelivered {
			w = eager(t, f, w)
		}
		_, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
			rows, err := tx.Query(ctx, `SELECT 'x'`)
			if err != nil {
				return 0, err
			}
			for rows.Next() {
				var n int
				if err := rows.Scan(&n); err == nil {
					t.Error("scanned x as a number")
				}
			}
			return 1, f.write(ctx, tx, "a")
		})
		if err != nil {
			t.Errorf("eager %t: %v", redelivered, err)
		}
	}
	// without calling Next again
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	for _, w := range []once.Work[int]{eager(t, f, op.For("e")), op.For("f")} {
		_, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
			rows, _ := tx.Query(ctx, `SELECT 'x'`)
			rows.Next()
			var n int
			_ = rows.Scan(&n)
			return 1, f.write(ctx, tx, "a")
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// eager returns work on a key that is free and has a record, for which Transact
// claims first.
func eager(t *testing.T, f *fixture, w once.Work[int]) once.Work[int] {
	t.Helper()
	r := newRequest()
	r.Key = w.Key()
	rec, err := f.Claim(t.Context(), r)
	set := done(rec, "")
	set.Status = once.Absent
	if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
		t.Fatal(err)
	}
	return w
}

// The name of a prepared statement may begin with a word of SQL, and PREPARE
// may name a table "transaction".
func TestPreparedNamesThatBeginLikeSQL(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	for i, name := range []string{"start_order", "commit2", "insert_order"} {
		_, err := once.DoTx(t.Context(), f.Store, op.For(fmt.Sprint(i)), func(ctx context.Context, tx pgx.Tx) (int, error) {
			if _, err := tx.Prepare(ctx, name, `INSERT INTO `+f.effects()+` VALUES ($1)`); err != nil {
				return 0, err
			}
			_, err := tx.Exec(ctx, name, "a")
			return 1, err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, f.admin, `CREATE TABLE `+f.schema+`.transaction (n int)`)
	_, err := once.DoTx(t.Context(), f.Store, op.For("prepare"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = `+f.schema); err != nil {
			return 0, err
		}
		_, err := tx.Exec(ctx, `PREPARE q AS SELECT * FROM transaction`)
		return 1, err
	})
	if err != nil {
		t.Error(err)
	}
}

// Options after a QueryRewriter among the arguments have an effect.
func TestOptionsBehindARewriterAreKept(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	for _, w := range []once.Work[int]{eager(t, f, op.For("e")), op.For("f")} {
		_, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
			rows, err := tx.Query(ctx, `SELECT @n::int`, pgx.NamedArgs{"n": 7}, pgx.QueryResultFormats{pgx.TextFormatCode})
			if err != nil {
				return 0, err
			}
			defer rows.Close()
			rows.Next()
			if raw := string(rows.RawValues()[0]); raw != "7" {
				return 0, fmt.Errorf("raw value %q", raw)
			}
			return 1, nil
		})
		if err != nil {
			t.Error(w.Key().ID, err)
		}
	}
}

// A COMMIT that the handle cannot see, on the connection itself, is noticed.
func TestACommitThatTheHandleDoesNotSee(t *testing.T) {
	for name, commit := range map[string]func(context.Context, pgx.Tx) error{
		"batch": func(ctx context.Context, tx pgx.Tx) error {
			b := new(pgx.Batch)
			b.Queue("commit")
			return tx.SendBatch(ctx, b).Close()
		},
		"nested": func(ctx context.Context, tx pgx.Tx) error {
			in, err := tx.Begin(ctx)
			if err == nil {
				_, err = in.Exec(ctx, "commit")
			}
			return err
		},
		"nested comment": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "/* a /* b */ c */ commit")
			return err
		},
		"semicolon":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "; commit"); return err },
		"second":       func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1; commit"); return err },
		"form feed":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "\fcommit"); return err },
		"line comment": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "-- x\rcommit"); return err },
	} {
		for _, ahead := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s eager %t", name, ahead), func(t *testing.T) {
				f := newFixture(t)
				op := &once.Operation[int]{Name: "pay", Speculative: true, OnUnknown: once.Park}
				w := op.For("1")
				if ahead {
					w = eager(t, f, w)
				}
				for range 2 {
					_, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
						if err := f.write(ctx, tx, "a"); err != nil {
							return 0, err
						}
						return 1, commit(ctx, tx)
					})
					wantError(t, err, once.ErrInTx)
				}
				if n := f.count(t, "a"); n > 0 {
					t.Errorf("%d effects", n)
				}
			})
		}
	}
}

// The value that a loser returns is ignored.
func TestALosersValueIsIgnored(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true, Policy: once.Policy{Wait: once.NoWait}}
	_, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		if err := f.write(ctx, tx, "a"); err != nil {
			return 0, err
		}
		n, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
			_ = f.write(ctx, tx, "a")
			return 42, nil
		})
		wantError(t, err, once.ErrInProgress)
		if n != 0 {
			t.Errorf("the loser's value %d came back with %v", n, err)
		}
		return 1, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// InTx on the key of its own transaction does not find it done.
func TestInTxOnItsOwnKeyIsNotDone(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[struct{}]{Name: "pay", Speculative: true}
	inner := false
	_, err := once.DoTx(t.Context(), f.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		if err := f.write(ctx, tx, "outer"); err != nil {
			return struct{}{}, err
		}
		return once.InTx(ctx, f.Store, tx, op.For("1"), func(ctx context.Context) (struct{}, error) {
			inner = true
			return struct{}{}, f.write(ctx, tx, "inner")
		})
	})
	if err == nil && !inner {
		t.Error("the inner work was taken for done")
	}
}

// A handler may begin with DEALLOCATE ALL on the connection itself: later
// transactions on that connection work.
func TestConnFirstWhenBeginFails(t *testing.T) {
	f := newFixture(t, one)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	for i := range 4 {
		_, err := once.DoTx(t.Context(), f.Store, op.For(fmt.Sprint(i)), func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Conn().Exec(ctx, `DEALLOCATE ALL`)
			return 1, err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A handler may deallocate the statements that its commit needs.
func TestWorkThatDeallocatesStatements(t *testing.T) {
	for _, newRequest := range requests {
		f := newFixture(t, one)
		for i := range 8 {
			r := newRequest()
			work := func(ctx context.Context, tx pgx.Tx) error {
				err := f.write(ctx, tx, "a")
				if i%3 == 2 {
					_, failed := tx.Conn().Exec(ctx, `DEALLOCATE ALL`)
					err = errors.Join(err, failed)
				}
				return err
			}
			_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error { return work(t.Context(), tx) })
			for range 2 {
				if !errors.Is(err, once.ErrConflict) {
					break
				}
				// As DoTx does.
				_, err = transact(t.Context(), f.Store, r, func(tx pgx.Tx) error { return work(t.Context(), tx) })
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// If an argument of the first statement cannot be encoded, nothing is sent, and
// the handler can go on.
func TestAnUnencodableArgumentFirst(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		f := newFixture(t, mode(m))
		op := &once.Operation[int]{Name: "pay", Speculative: true}
		for _, w := range []once.Work[int]{eager(t, f, op.For("e")), op.For("f")} {
			n, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
				if _, err := tx.Exec(ctx, `INSERT INTO `+f.effects()+` VALUES ($1)`, make(chan int)); err == nil {
					t.Error("encoded")
				}
				return 1, f.write(ctx, tx, "fallback")
			})
			if n != 1 || err != nil {
				t.Errorf("%v, %s: %d, %v", m, w.Key().ID, n, err)
			}
		}
	}
}

// If the context of the first statement has ended, the statement is not sent,
// and the handler can go on.
func TestAnEndedContextFirst(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[int]{Name: "pay", Speculative: true}
	for _, w := range []once.Work[int]{eager(t, f, op.For("e")), op.For("f")} {
		n, err := once.DoTx(t.Context(), f.Store, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_ = f.write(ended, tx, "b")
			return 1, f.write(ctx, tx, "a")
		})
		if n != 1 || err != nil {
			t.Errorf("%s: %d, %v", w.Key().ID, n, err)
		}
	}
}
