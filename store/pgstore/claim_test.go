package pgstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Each way to ask for a key sees a transaction in flight on it, and none waits
// for it.
func TestATransactionInFlightIsSeen(t *testing.T) {
	f := newFixture(t)
	other := f.again(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	meet := func(t *testing.T, r once.ClaimRequest) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		rec, err := other.Claim(ctx, r)
		if err != nil || rec.Status != once.Running || rec.LeaseLeft != 0 || rec.Key != r.Key || rec.Owner != [16]byte{} {
			t.Errorf("Claim: %+v, %v", rec, err)
		}
		if rec, err = transact(ctx, other, r, nothing); err != nil || rec.Status != once.Running || rec.LeaseLeft != 0 {
			t.Errorf("Transact: %+v, %v", rec, err)
		}
	}
	t.Run("on a new key", func(t *testing.T) {
		r := newRequest()
		_, err := transact(t.Context(), f.Store, r, func(pgx.Tx) error { meet(t, rival(r)); return nil })
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("on a released key", func(t *testing.T) {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		set := done(rec, "")
		set.Status = once.Absent
		if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
			t.Fatal(err)
		}
		rec, err = transact(t.Context(), f.Store, rival(r), func(pgx.Tx) error { meet(t, rival(r)); return nil })
		if err != nil || rec.Attempt != 2 {
			t.Errorf("got %+v, %v", rec, err)
		}
	})
	t.Run("on an attempt that it takes over", func(t *testing.T) {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		set := done(rec, "")
		set.Status = once.Unknown
		if err := errors.Join(err, f.Settle(t.Context(), set)); err != nil {
			t.Fatal(err)
		}
		again := rival(r)
		again.Attempt = 1
		rec, err = transact(t.Context(), f.Store, again, func(pgx.Tx) error {
			next := rival(r)
			next.Attempt = 1
			meet(t, next)
			return nil
		})
		if err != nil || rec.Attempt != 2 {
			t.Errorf("got %+v, %v", rec, err)
		}
	})
}

func rival(r once.ClaimRequest) once.ClaimRequest {
	r.Owner = random()
	return r
}

// A claim looks again if a row was committed after its snapshot.
func TestAClaimOvertakenAfterItsSnapshot(t *testing.T) {
	for _, c := range []struct {
		name, status string
		want         once.Status
		attempt      int64
	}{
		{"by one that is running", "1", once.Running, 5},
		{"by one that was released", "0", once.Running, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			// The trigger blocks an insert between its snapshot and the unique
			// index.
			must(t, f.admin, `CREATE FUNCTION `+f.schema+`.stall() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN IF NEW.attempt = 1 THEN PERFORM pg_advisory_xact_lock(hashtext(TG_TABLE_SCHEMA)); END IF; RETURN NEW; END $$`)
			must(t, f.admin, `CREATE TRIGGER stall BEFORE INSERT ON `+f.records()+` FOR EACH ROW EXECUTE FUNCTION `+f.schema+`.stall()`)
			lock, err := f.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Rollback(t.Context())
			if _, err := lock.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtext($1))`, f.schema); err != nil {
				t.Fatal(err)
			}
			r, winner := newRequest(), random()
			type reply struct {
				rec once.Record
				err error
			}
			replies := make(chan reply, 1)
			go func() {
				rec, err := f.Claim(t.Context(), r)
				replies <- reply{rec, err}
			}()
			waitFor(t, func() bool {
				var n int
				err := f.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'
					AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()`, f.schema).Scan(&n)
				return err == nil && n == 1
			})
			must(t, f.admin, `INSERT INTO `+f.records()+` (key, scope, operation, id, status, attempt, owner, lease_until, key_until, created, updated)
				VALUES ($1, $2, $3, $4, `+c.status+`, 5, $5, 9e15, CASE `+c.status+` WHEN 0 THEN 9e15 END, 1, 1)`, r.Key.String(), r.Key.Scope, r.Key.Operation, r.Key.ID, winner)
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := <-replies
			if got.err != nil || got.rec.Status != c.want || got.rec.Attempt != c.attempt || (got.rec.Owner == r.Owner) != (c.attempt == 6) {
				t.Errorf("got %+v, %v", got.rec, got.err)
			}
		})
	}
}

func TestAReplayWritesNothing(t *testing.T) {
	f := newFixture(t)
	r := newRequest()
	if _, err := transact(t.Context(), f.Store, r, nothing); err != nil {
		t.Fatal(err)
	}
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(r)})
	if err != nil || recs[0].Status != once.Done || string(recs[0].Outcome.Body) != "ok" {
		t.Fatalf("got %+v, %v", recs, err)
	}
	var written *string
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned()::text`).Scan(&written); err != nil || written != nil {
		t.Errorf("the transaction has written: %v, %v", written, err)
	}
}

// A transaction with one snapshot for all its statements cannot see the claim
// that overtook it: that is a conflict.
func TestOvertakenClaimsAreConflictsAtStricterIsolation(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			f := newFixture(t)
			begin := func() pgx.Tx {
				tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
				if _, err := tx.Exec(t.Context(), `SELECT 1 FROM `+f.effects()); err != nil { // takes the snapshot
					t.Fatal(err)
				}
				return tx
			}
			t.Run("a lost race", func(t *testing.T) {
				r, tx := newRequest(), begin()
				if _, err := transact(t.Context(), f.Store, r, nothing); err != nil {
					t.Fatal(err)
				}
				_, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(r)})
				wantError(t, err, once.ErrConflict)
			})
			t.Run("a won race", func(t *testing.T) {
				r, tx := newRequest(), begin()
				recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
				if err != nil {
					t.Fatal(err)
				}
				err = errors.Join(f.SettleTx(t.Context(), tx, []once.Settlement{done(recs[0], "ok")}), tx.Commit(t.Context()))
				if err != nil {
					t.Error(err)
				}
				wantStatus(t, f, r.Key, once.Done)
			})
			t.Run("a storm", func(t *testing.T) {
				storm(t, f, f.again(t, isolation(level)))
			})
		})
	}
}

// ClaimTx and SettleTx work in a transaction of a pool, of a connection, and in
// a nested one.
func TestTransactionsOfTheCaller(t *testing.T) {
	f := newFixture(t)
	conn, err := pgx.Connect(t.Context(), server(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	type beginner interface {
		Begin(context.Context) (pgx.Tx, error)
	}
	for name, db := range map[string]beginner{"pool": f.pool, "connection": conn} {
		t.Run(name, func(t *testing.T) {
			taken := newRequest()
			if _, err := transact(t.Context(), f.Store, taken, nothing); err != nil {
				t.Fatal(err)
			}
			r := newRequest()
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
					recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(taken), r})
					if err != nil {
						return err
					}
					if recs[0].Status != once.Done || recs[1].Owner != r.Owner {
						t.Errorf("got %+v", recs)
					}
					stale := done(recs[1], "")
					stale.Attempt++
					wantError(t, f.SettleTx(t.Context(), tx, []once.Settlement{stale}), once.ErrLeaseLost)
					return errors.Join(f.write(t.Context(), tx, name), f.SettleTx(t.Context(), tx, []once.Settlement{done(recs[1], "ok")}))
				})
			})
			if n := f.count(t, name); err != nil || n != 1 {
				t.Errorf("%d rows, %v", n, err)
			}
			wantStatus(t, f, r.Key, once.Done)
		})
	}
}

func TestAForeignRowIsCorrupt(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]string{"other parts": `id = 'other'`, "an impossible status": `status = 9`} {
		t.Run(name, func(t *testing.T) {
			r := newRequest()
			if _, err := transact(t.Context(), f.Store, r, nothing); err != nil {
				t.Fatal(err)
			}
			must(t, f.admin, `UPDATE `+f.records()+` SET `+change+` WHERE key = $1`, r.Key.String())
			_, err := f.Get(t.Context(), r.Key)
			wantError(t, err, once.ErrCorrupt)
			_, err = f.Claim(t.Context(), rival(r))
			wantError(t, err, once.ErrCorrupt)
			_, err = transact(t.Context(), f.Store, rival(r), nothing)
			wantError(t, err, once.ErrCorrupt)
		})
	}
}

func TestAForeignRowIsNotTakenThoughItsTimeHasPassed(t *testing.T) {
	f := newFixture(t)
	r := newRequest()
	if _, err := transact(t.Context(), f.Store, r, nothing); err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `UPDATE `+f.records()+` SET id = 'other', key_until = 1, updated = 1 WHERE key = $1`, r.Key.String())
	_, err := f.Claim(t.Context(), rival(r))
	wantError(t, err, once.ErrCorrupt)
	untouched := 0
	err = f.admin.QueryRow(t.Context(), `SELECT count(*) FROM `+f.records()+` WHERE status = 4 AND key_until = 1`).Scan(&untouched)
	if err != nil || untouched != 1 {
		t.Errorf("the claim has changed the row, %v", err)
	}
}

var _ once.TxStore[pgx.Tx] = (*pgstore.Store)(nil)
