package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// guarded is a call of DoTx.
type guarded func(ctx context.Context, s *pgstore.Store, id string, work func(context.Context, pgx.Tx) error) error

// guard returns a guarded that returns value, and fails if a call gets another
// result.
func guard[T comparable](policy once.Policy, value T, speculative bool) guarded {
	op := &once.Operation[T]{Name: "speculative", Policy: policy, Speculative: speculative}
	return func(ctx context.Context, s *pgstore.Store, id string, work func(context.Context, pgx.Tx) error) error {
		got, err := once.DoTx(ctx, s, op.For(id), func(ctx context.Context, tx pgx.Tx) (T, error) { return value, work(ctx, tx) })
		if err == nil && got != value {
			err = fmt.Errorf("the answer is %v, want %v", got, value)
		}
		return err
	}
}

// shapes are the two ways in which speculation writes the record: with the
// claim if the outcome is expected, and together with COMMIT if not.
func shapes(policy once.Policy) map[string]guarded {
	return map[string]guarded{"foreseen": guard(policy, struct{}{}, true), "not foreseen": guard(policy, 7, true)}
}

func keyOf(id string) once.Key { return once.Key{Operation: "speculative", ID: id} }

func onlyOne(cfg *pgxpool.Config) { cfg.MaxConns = 1 }

var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

// unused returns a store over the same pool that has lost no claim yet, and has
// checked its tables.
func (f *fixture) unused(t testing.TB) *pgstore.Store {
	t.Helper()
	s := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema})
	get(t, s, keyOf("none"))
	return s
}

// quiet waits until every connection is back in the pool and no transaction is
// open.
func (f *fixture) quiet(t testing.TB) {
	t.Helper()
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 0 })
	for _, c := range f.pool.AcquireAllIdle(t.Context()) {
		if status := c.Conn().PgConn().TxStatus(); status != 'I' {
			t.Errorf("a connection is in the pool with the status %c", status)
		}
		c.Release()
	}
	waitFor(t, func() bool { // the server needs a moment to notice that a connection was closed
		var n int
		err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE c.relnamespace = $1::regnamespace`, f.schema).Scan(&n)
		return err == nil && n == 0
	})
}

func (f *fixture) want(t testing.TB, name string, rows int) {
	t.Helper()
	if n := f.count(t, name); n != rows {
		t.Errorf("%d rows of %q, want %d", n, name, rows)
	}
}

func TestSpeculativeRoundTrips(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		forgot := int64(0)
		if m == pgx.QueryExecModeCacheStatement {
			forgot = 2 // pgx deallocates what a failed batch has prepared
		}
		for shape, do := range shapes(once.Policy{Wait: once.NoWait}) {
			t.Run(m.String()+", "+shape, func(t *testing.T) {
				w, ids := &wire{}, 0
				f := newFixture(t, w.into, mode(m), onlyOne)
				write := func(ctx context.Context, tx pgx.Tx) error { return f.write(ctx, tx, "a") }
				twice := func(ctx context.Context, tx pgx.Tx) error { return errors.Join(write(ctx, tx), write(ctx, tx)) }
				fresh := func(work func(context.Context, pgx.Tx) error) func(*pgstore.Store) error {
					return func(s *pgstore.Store) error { ids++; return do(t.Context(), s, fmt.Sprint(ids), work) }
				}
				hold(t, f, do, "in flight")
				for _, c := range []struct {
					name  string
					trips int64 // at most, with what is prepared already
					want  error
					call  func(*pgstore.Store) error
				}{
					{"one statement", 2, nil, fresh(write)},
					{"two statements", 3, nil, fresh(twice)},
					{"no statement", 1, nil, fresh(nothingOf)},
					{"a duplicate that is flagged", 1, nil, func(s *pgstore.Store) error {
						_, err := once.DoTx(t.Context(), s, (&once.Operation[once.Outcome]{Name: "speculative"}).For("1").Redelivered(),
							func(context.Context, pgx.Tx) (out once.Outcome, err error) { return out, errors.New("entered") })
						return err
					}},
					{"a duplicate", 3 + forgot, nil, func(s *pgstore.Store) error { return do(t.Context(), s, "1", write) }},
					{"a duplicate in flight", 3 + forgot, once.ErrInProgress, func(s *pgstore.Store) error { return do(t.Context(), s, "in flight", write) }},
				} {
					var trips int64
					for range 2 {
						s := f.unused(t)
						before := w.trips.Load()
						if err := c.call(s); !errors.Is(err, c.want) || c.want == nil && err != nil {
							t.Errorf("%s: %v, want %v", c.name, err, c.want)
						}
						trips = w.trips.Load() - before
					}
					if trips > c.trips {
						t.Errorf("%s takes %d round trips, want %d", c.name, trips, c.trips)
					}
				}
			})
		}
	}
}

// hold leaves a transaction on a key in flight until the test ends.
func hold(t *testing.T, f *fixture, do guarded, id string) {
	s, held, end, ended := f.again(t), make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- do(context.WithoutCancel(t.Context()), s, id, func(ctx context.Context, tx pgx.Tx) error {
			err := f.write(ctx, tx, id)
			close(held)
			<-end
			return err
		})
	}()
	<-held
	t.Cleanup(func() {
		close(end)
		if err := <-ended; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

func nothingOf(context.Context, pgx.Tx) error { return nil }

// wantPrivate checks the error of a statement of a handler that has lost: it
// matches no error that a handler may look for.
func wantPrivate(t testing.TB, err error) {
	t.Helper()
	wantText(t, err, "another call has this key")
	for _, public := range []error{once.ErrInProgress, once.ErrConflict, once.ErrOutcomeUnknown, once.ErrLeaseLost, once.ErrRejected,
		once.ErrInTx, once.ErrInvalid, pgx.ErrNoRows, pgx.ErrTxClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, public) {
			t.Errorf("a loser's error is %v: %v", public, err)
		}
	}
	if pe := new(pgconn.PgError); errors.As(err, &pe) {
		t.Errorf("a loser's error shows the server's %s", pe.Code)
	}
}

// Whatever a handler does after it has lost its claim, every caller gets the
// first result.
func TestSpeculativeLosersAreIgnored(t *testing.T) {
	f := newFixture(t)
	op, runs := &once.Operation[int]{Name: "speculative", Speculative: true}, 0
	pay := func(id string, r *once.Report, lie func(error) (int, error)) (int, error) {
		return once.DoTx(t.Context(), f.unused(t), op.For(id).Report(r), func(ctx context.Context, tx pgx.Tx) (int, error) {
			runs++
			return lie(f.write(ctx, tx, id))
		})
	}
	for id, no := range map[string]error{"paid": nil, "rejected": once.ErrRejected} {
		if n, err := pay(id, nil, func(err error) (int, error) { return 7, errors.Join(err, no) }); n != 7 || !errors.Is(err, no) {
			t.Fatal(n, err)
		}
		before := get(t, f, keyOf(id))
		for name, lie := range map[string]func(error) (int, error){
			"its error":              func(err error) (int, error) { return 0, err },
			"its error, wrapped":     func(err error) (int, error) { return 0, fmt.Errorf("cannot pay: %w", err) },
			"an error of its own":    func(error) (int, error) { return 0, errors.New("already paid") },
			"another value":          func(error) (int, error) { return 8, nil },
			"ErrRejected":            func(error) (int, error) { return 8, once.ErrRejected },
			"NotDone":                func(err error) (int, error) { return 8, once.NotDone(err) },
			"Permanent":              func(err error) (int, error) { return 8, once.Permanent(err) },
			"RetryAfter":             func(err error) (int, error) { return 8, once.RetryAfter(time.Hour, err) },
			"an error of PostgreSQL": func(error) (int, error) { return 8, &pgconn.PgError{Severity: "ERROR", Code: "40001"} },
		} {
			var r once.Report
			runs = 0
			n, err := pay(id, &r, lie)
			if runs != 1 || n != 7 || !errors.Is(err, no) || no == nil && err != nil || !r.Replayed || r.Attempt != before.Attempt {
				t.Errorf("%s: a loser that returns %s: %d, %v, %+v", id, name, n, err, r)
			}
		}
		if now := get(t, f, keyOf(id)); !sameRecord(before, now) {
			t.Errorf("%s: the record was %+v and is %+v", id, before, now)
		}
	}
	f.want(t, "paid", 1)
	f.want(t, "rejected", 0)
	f.quiet(t)
}

// The record has the outcome that the work returns, and is kept as its policy
// says from the end of the work, whatever was expected.
func TestSpeculativeOutcomes(t *testing.T) {
	f := newFixture(t)
	policy := once.Policy{KeepOutcome: 10 * time.Second, KeepKey: 20 * time.Second} // so that 0.3 seconds of work are slow
	write := func(ctx context.Context, tx pgx.Tx) error { return f.write(ctx, tx, "a") }
	for shape, do := range shapes(policy) {
		for name, work := range map[string]func(context.Context, pgx.Tx) error{
			"silent": nothingOf,
			"quick":  write,
			"odd":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `DO 'BEGIN END'`); return err },
			"slow": func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT pg_sleep(0.3)`)
				return err
			},
			"rejected":            func(ctx context.Context, tx pgx.Tx) error { return errors.Join(write(ctx, tx), once.ErrRejected) },
			"rejected in silence": func(context.Context, pgx.Tx) error { return once.ErrRejected },
		} {
			t.Run(shape+", "+name, func(t *testing.T) {
				id, rejected, end := shape+name, strings.HasPrefix(name, "rejected"), int64(0)
				err := do(t.Context(), f.Store, id, func(ctx context.Context, tx pgx.Tx) error {
					err := work(ctx, tx)
					_ = f.admin.QueryRow(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&end)
					return err
				})
				if errors.Is(err, once.ErrRejected) != rejected || !rejected && err != nil {
					t.Fatal(err)
				}
				rec := get(t, f, keyOf(id))
				if rec.Status != once.Done || rec.Attempt != 1 || rec.Outcome.Rejected != rejected {
					t.Errorf("the record is %+v", rec)
				}
				var outcome, key, due int64
				if err := f.admin.QueryRow(t.Context(), `SELECT outcome_until, key_until, due FROM `+f.records()+` WHERE id = $1`, id).
					Scan(&outcome, &key, &due); err != nil {
					t.Fatal(err)
				}
				keep := policy.KeepOutcome.Microseconds()
				if late := outcome - end - keep; late < -keep/64-10_000 || late > 2_000_000 || name == "slow" && late < 0 {
					t.Errorf("the outcome is kept %d µs longer than it should be", late)
				}
				if key-outcome != keep || due > outcome+keep/64 {
					t.Errorf("outcome until %d, key until %d, due at %d", outcome, key, due)
				}
				if err := do(t.Context(), f.Store, id, nothingOf); errors.Is(err, once.ErrRejected) != rejected || !rejected && err != nil {
					t.Errorf("a duplicate: %v", err)
				}
			})
		}
	}
	f.want(t, "a", 2)
}

// odd is expected to be encoded as {}, and is not.
type odd struct{}

var told sync.Map

func (odd) MarshalJSON() ([]byte, error) {
	_, again := told.LoadOrStore("odd", true)
	return fmt.Appendf(nil, `{"again":%t}`, again), nil
}

func TestSpeculativeOutcomeIsNotAsForeseen(t *testing.T) {
	f := newFixture(t)
	do := guard(once.Policy{}, odd{}, true)
	if err := do(t.Context(), f.Store, "1", func(ctx context.Context, tx pgx.Tx) error { return f.write(ctx, tx, "a") }); err != nil {
		t.Fatal(err)
	}
	if body := string(get(t, f, keyOf("1")).Outcome.Body); body != `{"again":true}` {
		t.Errorf("the outcome is %s", body)
	}
	f.want(t, "a", 1)
}

// If the connection is lost at COMMIT, there is one effect, and its result.
func TestSpeculativeLostCommits(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for shape, do := range shapes(once.Policy{}) {
			for name, lose := range map[string]int32{"request": loseRequest, "reply": loseReply} {
				t.Run(m.String()+", "+shape+", "+name, func(t *testing.T) {
					w := &wire{}
					f := newFixture(t, w.into, mode(m))
					for id, statements := range map[string]int{"silent": 0, "one": 1, "two": 2} {
						runs := 0
						w.lose.Store(lose)
						err := do(t.Context(), f.Store, id, func(ctx context.Context, tx pgx.Tx) error {
							runs++
							for range statements {
								if err := f.write(ctx, tx, id); err != nil {
									return err
								}
							}
							return nil
						})
						if left := w.lose.Load(); err != nil || left != 0 || runs > 2 || lose == loseReply && runs != 1 {
							t.Errorf("%s: %v after %d runs, %d to lose", id, err, runs, left)
						}
						f.want(t, id, statements)
						wantStatus(t, f, keyOf(id), once.Done)
					}
					f.quiet(t)
				})
			}
		}
	}
}

// An error of the work is returned as it is without speculation, and nothing is
// committed.
func TestSpeculativeWorkFails(t *testing.T) {
	mine := errors.New("out of stock")
	for shape, do := range shapes(once.Policy{}) {
		f := newFixture(t, onlyOne)
		must(t, f.admin, `CREATE UNIQUE INDEX ON `+f.effects()+` (name)`)
		must(t, f.admin, `INSERT INTO `+f.effects()+` VALUES ('there')`)
		exec := func(sql string, args ...any) func(context.Context, pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql, args...)
				return err
			}
		}
		swallow := func(ctx context.Context, tx pgx.Tx) error { _ = f.write(ctx, tx, "there"); return nil }
		for _, c := range []struct {
			name string
			want any // a text in the error, or an error
			work func(context.Context, pgx.Tx) error
		}{
			{"an error before any statement", mine, func(context.Context, pgx.Tx) error { return mine }},
			{"an error after a statement", mine, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(f.write(ctx, tx, "a"), mine) }},
			{"a syntax error", "42601", exec(`SELECT FROM WHERE`)},
			{"no such table", "42P01", exec(`INSERT INTO nowhere VALUES (1)`)},
			{"a unique index of the caller's", "23505", exec(`INSERT INTO `+f.effects()+` VALUES ($1)`, "there")},
			{"a division by zero", "22012", exec(`SELECT 1 / (count(*) - count(*)) FROM ` + f.effects())},
			{"a text that is no number", "22P02", exec(`SELECT ('once: ' || count(*))::int FROM ` + f.effects())},
			{"an argument that cannot be sent", "unable to encode", exec(`SELECT $1::int`, make(chan int))},
			{"an ignored error", "was ignored", swallow},
			{"rows left open", "still open", func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
				return err
			}},
			{"a context that ends", context.DeadlineExceeded, func(ctx context.Context, tx pgx.Tx) error {
				ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				_, err := tx.Exec(ctx, `SELECT pg_sleep(10)`)
				return err
			}},
			{"a level too late", "25001", exec(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)},
			{"BEGIN", once.ErrInTx, exec(`BEGIN`)},
			{"COMMIT", once.ErrInTx, exec("/* harmless */ -- x\n commit")},
			{"ROLLBACK", once.ErrInTx, exec(`rollback;`)},
		} {
			t.Run(shape+", "+c.name, func(t *testing.T) {
				err := do(t.Context(), f.Store, c.name, c.work)
				if target, ok := c.want.(error); ok {
					wantError(t, err, target)
				} else {
					wantText(t, err, c.want.(string))
				}
				wantStatus(t, f, keyOf(c.name), once.Absent)
				f.quiet(t)
				if err := do(t.Context(), f.Store, c.name, func(ctx context.Context, tx pgx.Tx) error { return f.write(ctx, tx, c.name) }); err != nil {
					t.Errorf("afterwards: %v", err)
				}
				f.want(t, c.name, 1)
			})
		}
		f.want(t, "a", 0)
	}
}

// A handler that panics or ends its goroutine commits nothing. The caller of a
// winner sees the panic, the caller of a loser gets the first result.
func TestSpeculativeHandlersThatDoNotReturn(t *testing.T) {
	for shape, do := range shapes(once.Policy{}) {
		f := newFixture(t, onlyOne)
		before := runtime.NumGoroutine()
		for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
			for _, id := range []string{"before", "after", "done before", "done after"} {
				what := fmt.Sprintf("%s, %s, %s", shape, name, id)
				lost := strings.HasPrefix(id, "done")
				if lost {
					if err := do(t.Context(), f.Store, name+id, nothingOf); err != nil {
						t.Fatal(err)
					}
				}
				var returned bool
				var err error
				entered, ended := 0, make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					err = do(t.Context(), f.unused(t), name+id, func(ctx context.Context, tx pgx.Tx) error {
						entered++
						if strings.HasSuffix(id, "after") {
							_ = f.write(ctx, tx, "a")
						}
						end()
						return nil
					})
					returned = true
				}()
				switch v := <-ended; {
				case entered == 0:
					t.Errorf("%s: the handler was not entered: that forces nothing", what)
				case lost && (!returned || err != nil || v != nil):
					t.Errorf("%s: returned %t, %v, recovered %v", what, returned, err, v)
				case !lost && (returned || (v == "boom") != (name == "panic")):
					t.Errorf("%s: returned %t, recovered %v", what, returned, v)
				}
				f.quiet(t)
				if err := do(t.Context(), f.Store, name+id, nothingOf); err != nil {
					t.Errorf("%s, afterwards: %v", what, err)
				}
			}
		}
		f.want(t, "a", 0)
		waitFor(t, func() bool { return runtime.NumGoroutine() <= before+2 })
	}
}

// Concurrent duplicates have one effect, at each isolation level and in each
// exec mode.
func TestSpeculativeDuplicatesAtOnce(t *testing.T) {
	levels := []pgx.TxIsoLevel{"", pgx.RepeatableRead, pgx.Serializable}
	f := newFixture(t)
	for i, level := range levels {
		for _, m := range modes {
			one := pgstore.New(pool(t, server(t), mode(m)), &pgstore.Options{Schema: f.schema, Isolation: level})
			two := pgstore.New(pool(t, bouncer(t), mode(modes[3+i%2])), &pgstore.Options{Schema: f.schema, Isolation: level})
			for shape, do := range shapes(once.Policy{Wait: 20 * time.Second}) {
				id := fmt.Sprint(level, m, shape)
				var wg sync.WaitGroup
				for n := range 12 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						err := do(t.Context(), []*pgstore.Store{one, two, f.Store}[n%3], id, func(ctx context.Context, tx pgx.Tx) error {
							var got string
							err := tx.QueryRow(ctx, `SELECT current_setting('transaction_isolation')`).Scan(&got)
							if n%3 != 2 && level != "" {
								err = want(err, got, string(level))
							}
							return errors.Join(err, f.write(ctx, tx, id))
						})
						if err != nil {
							t.Errorf("%s: %v", id, err)
						}
					}()
				}
				wg.Wait()
				f.want(t, id, 1)
			}
		}
	}
	f.quiet(t)
}
