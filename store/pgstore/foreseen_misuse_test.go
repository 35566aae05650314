package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connWays are the ways in which work gets the connection of its transaction.
var connWays = map[string]func(context.Context, pgx.Tx) (*pgx.Conn, error){
	"Conn": func(_ context.Context, tx pgx.Tx) (*pgx.Conn, error) { return tx.Conn(), nil },
	"Conn with open rows": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		rows, err := tx.Query(ctx, `SELECT 1`)
		if err != nil {
			return nil, err
		}
		tx.Conn()
		rows.Close()
		return tx.Conn(), nil
	},
	"Conn of rows": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		rows, err := tx.Query(ctx, `SELECT 1`)
		if err != nil {
			return nil, err
		}
		rows.Close()
		return rows.Conn(), nil
	},
	"Conn of rows of a batch": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		b := new(pgx.Batch)
		b.Queue(`SELECT 1`)
		results := tx.SendBatch(ctx, b)
		rows, err := results.Query()
		if err != nil {
			return nil, err
		}
		rows.Close()
		return rows.Conn(), results.Close()
	},
	"Conn of rows of a function of a batch": func(ctx context.Context, tx pgx.Tx) (conn *pgx.Conn, err error) {
		b := new(pgx.Batch)
		b.Queue(`SELECT 1`).Query(func(rows pgx.Rows) error {
			rows.Close()
			conn = rows.Conn()
			return nil
		})
		return conn, tx.SendBatch(ctx, b).Close()
	},
	"Conn of a savepoint that is rolled back": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		inner.Conn()
		return tx.Conn(), inner.Rollback(ctx)
	},
	"Conn after a failure in a savepoint": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, _ = inner.Exec(ctx, `SELECT 1 / 0`)
		inner.Conn()
		return tx.Conn(), inner.Rollback(ctx)
	},
	"Conn after a failure and a SAVEPOINT": func(ctx context.Context, tx pgx.Tx) (*pgx.Conn, error) {
		_, err := tx.Exec(ctx, `SAVEPOINT a`)
		if err != nil {
			return nil, err
		}
		_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
		tx.Conn()
		_, err = tx.Exec(ctx, `ROLLBACK TO SAVEPOINT a`)
		return tx.Conn(), err
	},
}

// Work that commits by itself holds its key all the same: while it runs, and
// after it.
func TestWorkThatCommitsByItselfHoldsItsKey(t *testing.T) {
	for name, way := range connWays {
		t.Run(name, func(t *testing.T) {
			eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
				f, r, entered := newFixture(t), newRequest(), 0
				work := func(tx pgx.Tx) error {
					entered++
					return f.write(t.Context(), tx, "effect")
				}
				again := func() {
					rec, err := transact(t.Context(), f.Store, rival(r), work)
					if err != nil {
						t.Fatal(err)
					}
					if rec.Status == once.Done && entered == 1 {
						t.Error("a repeat is told that the work is done")
					}
				}
				_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
					if err := work(tx); err != nil {
						return err
					}
					conn, err := way(t.Context(), tx)
					if err != nil {
						return err
					}
					if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
						return err
					}
					again()
					return nil
				})
				if err == nil {
					t.Error("no error")
				}
				waitFor(t, func() bool { // the server may still have a connection that was closed, and its lock
					again()
					return f.count(t, "effect") > 0
				})
				if n := f.count(t, "effect"); n != 1 {
					t.Errorf("%d effects, and %d handlers were entered", n, entered)
				}
			})
		})
	}
}

func TestWorkThatBeginsAnewByItself(t *testing.T) {
	for name, way := range connWays {
		t.Run(name, func(t *testing.T) {
			eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
				f, r := newFixture(t), newRequest()
				_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
					conn, err := way(t.Context(), tx)
					if err != nil {
						return err
					}
					if _, err := conn.Exec(t.Context(), `ROLLBACK; BEGIN`); err != nil {
						return err
					}
					return f.write(t.Context(), tx, "effect")
				})
				if n := f.count(t, "effect"); err == nil || n != 0 {
					t.Errorf("%d effects, error %v", n, err)
				}
			})
		})
	}
}

func TestTheErrorOfWorkThatCommitsByItself(t *testing.T) {
	eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
		f, r, errWork := newFixture(t), newRequest(), errors.New("the work failed")
		_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
			_, err := tx.Conn().Exec(t.Context(), `COMMIT`)
			return errors.Join(err, errWork)
		})
		wantError(t, err, once.ErrParked)
		wantError(t, err, errWork)
		wantStatus(t, f, r.Key, once.Parked)
	})
}

// Work may settle its own claim, and claim it again.
func TestWorkThatUsesItsOwnKey(t *testing.T) {
	eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
		f, r := newFixture(t), newRequest()
		if _, err := f.Transact(t.Context(), []once.ClaimRequest{r}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
			again, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
			if err == nil && !again[0].HeldBy(r.Owner) {
				t.Errorf("the owner meets %v", again[0])
			}
			return nil, errors.Join(err, f.SettleTx(t.Context(), tx, []once.Settlement{done(recs[0], "own")}))
		}); err != nil {
			t.Fatal(err)
		}
		if rec := get(t, f, r.Key); rec.Status != once.Done || string(rec.Outcome.Body) != "own" {
			t.Errorf("the record is %v", rec)
		}
	})
}

func TestARecordIsCreatedWhenItIsClaimed(t *testing.T) {
	for name, before := range map[string]func(pgx.Tx){"guarded": func(pgx.Tx) {}, "handed out": func(tx pgx.Tx) { tx.Conn() }} {
		t.Run(name, func(t *testing.T) {
			eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
				f, r := newFixture(t), newRequest()
				var claimed time.Time
				if _, err := f.Transact(t.Context(), []once.ClaimRequest{r}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
					claimed = recs[0].Created
					_, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.05)`)
					before(tx)
					return []once.Settlement{done(recs[0], "ok")}, err
				}); err != nil {
					t.Fatal(err)
				}
				if rec := get(t, f, r.Key); !rec.Created.Equal(claimed) {
					t.Errorf("created %v after the claim", rec.Created.Sub(claimed))
				}
			})
		})
	}
}

// A pool without a free connection does not keep Transact from returning.
func TestWorkThatCommitsByItselfWithoutAFreeConnection(t *testing.T) {
	eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
		f, r := newFixture(t, one), newRequest()
		taken := make(chan *pgxpool.Conn, 1)
		_, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
			go func() {
				c, _ := f.pool.Acquire(t.Context())
				taken <- c
			}()
			_, err := tx.Conn().Exec(t.Context(), `COMMIT`)
			return err
		})
		if err == nil {
			t.Error("no error")
		}
		(<-taken).Release()
	})
}

func TestNothingIsEnteredWhereNothingCanBeWritten(t *testing.T) {
	eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
		f := newFixture(t)
		s := f.again(t, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		})
		_, err := transact(t.Context(), s, newRequest(), func(pgx.Tx) error {
			t.Error("the work was entered")
			return nil
		})
		wantText(t, err, "25006")
	})
}

// A store that names the same tables in another way takes other locks. Then the
// unique index decides.
func TestAStoreThatNamesTheTablesInAnotherWay(t *testing.T) {
	for name, settle := range map[string]func(once.Record) []once.Settlement{
		"settled":     func(rec once.Record) []once.Settlement { return []once.Settlement{done(rec, "ok")} },
		"not settled": func(once.Record) []once.Settlement { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
				f, r := newFixture(t), newRequest()
				other := pgstore.New(pool(t, server(t), func(cfg *pgxpool.Config) {
					cfg.ConnConfig.RuntimeParams["search_path"] = f.schema
				}), nil)
				_, _ = f.Transact(t.Context(), []once.ClaimRequest{r}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, _ = transact(ctx, other, rival(r), func(tx pgx.Tx) error { return f.write(t.Context(), tx, "effect") })
					return settle(recs[0]), f.write(t.Context(), tx, "effect")
				})
				if n := f.count(t, "effect"); n != 1 {
					t.Errorf("%d effects", n)
				}
			})
		})
	}
}

// second runs a function before the second batch of a connection.
type second struct {
	pgx.QueryTracer
	batches int
	run     func()
}

func (s *second) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if s.batches++; s.batches == 2 {
		s.run()
	}
	return ctx
}
func (*second) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*second) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*second) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*second) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A duplicate that only looks is not in the way of a call that takes the key over.
func TestALookIsNotInTheWayOfATakeOver(t *testing.T) {
	eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
		f, r := newFixture(t), newRequest()
		rec, err := f.Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		set := done(rec, "")
		set.Status, set.Outcome = once.Unknown, once.Outcome{}
		if err := f.Settle(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		var takenOver once.Record
		takeOver := func() {
			take := rival(r)
			take.Attempt = 1
			if takenOver, err = transact(t.Context(), f.Store, take, nothing); err != nil {
				t.Error(err)
			}
		}
		between := &second{run: takeOver}
		looking := f.again(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = between })
		if _, err := transact(t.Context(), looking, rival(r), nothing); err != nil {
			t.Error(err)
		}
		if between.batches < 2 {
			takeOver()
		}
		if takenOver.Attempt != 2 {
			t.Errorf("the call that takes over meets %v", takenOver)
		}
	})
}
