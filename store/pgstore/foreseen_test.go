package pgstore_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// What the record says inside the transaction, which only the work can see.
func statusInside(t *testing.T, tx pgx.Tx, f *fixture, k once.Key) (status int) {
	t.Helper()
	if err := tx.QueryRow(t.Context(), `SELECT status FROM `+f.records()+` WHERE id = $1`, k.ID).Scan(&status); err != nil {
		t.Fatal(err)
	}
	return status
}

func TestAForeseenEndIsWrittenWithTheClaim(t *testing.T) {
	f := newFixture(t)
	r := newForeseen()
	if _, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
		if status := statusInside(t, tx, f, r.Key); status != int(once.Done) {
			t.Errorf("the record has the status %d before the end, want done", status)
		}
		recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(r)})
		if err == nil && recs[0].Status != once.Running {
			t.Errorf("a claim inside the transaction meets %v, want running", recs[0].Status)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if rec := get(t, f, r.Key); rec.Status != once.Done || string(rec.Outcome.Body) != "ok" || rec.Attempt != 1 {
		t.Errorf("the record is %v", rec)
	}
}

// The end that was foreseen does not bind the work.
func TestAnEndThatWasNotForeseenIsRecorded(t *testing.T) {
	f := newFixture(t)
	for name, end := range map[string]func(once.Record) []once.Settlement{
		"another outcome": func(rec once.Record) []once.Settlement { return []once.Settlement{done(rec, "else")} },
		"another time": func(rec once.Record) []once.Settlement {
			set := done(rec, "else")
			set.KeepKey = 5 * time.Hour
			return []once.Settlement{set}
		},
		"parked": func(rec once.Record) []once.Settlement {
			set := done(rec, "")
			set.Status, set.Outcome = once.Parked, once.Outcome{}
			return []once.Settlement{set}
		},
		"free again": func(rec once.Record) []once.Settlement {
			set := done(rec, "")
			set.Status, set.Outcome = once.Absent, once.Outcome{}
			return []once.Settlement{set}
		},
		"not settled": func(once.Record) []once.Settlement { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			recs := make(map[string]once.Record)
			for kind, newRequest := range requests {
				r := newRequest()
				if _, err := f.Transact(t.Context(), []once.ClaimRequest{r}, func(_ pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
					return end(recs[0]), nil
				}); err != nil {
					t.Fatal(err)
				}
				recs[kind] = get(t, f, r.Key)
			}
			for kind, seen := range recs {
				plain := recs["running"]
				if plain.Status != seen.Status || string(plain.Outcome.Body) != string(seen.Outcome.Body) || plain.Attempt != seen.Attempt ||
					plain.Reason != seen.Reason || (plain.LeaseLeft > 0) != (seen.LeaseLeft > 0) {
					t.Errorf("%s: %v\nwant %v", kind, seen, plain)
				}
			}
		})
	}
}

// Work that gets the connection can commit there. The record must not say then
// that the work is done.
func TestTheConnectionComesWithARunningRecord(t *testing.T) {
	for name, ask := range map[string]func(*testing.T, pgx.Tx){
		"Conn":         func(_ *testing.T, tx pgx.Tx) { tx.Conn() },
		"LargeObjects": func(_ *testing.T, tx pgx.Tx) { tx.LargeObjects() },
		"Conn of a nested transaction": func(t *testing.T, tx pgx.Tx) {
			inner, err := tx.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			inner.Conn()
			if err := inner.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachRequest(t, func(t *testing.T, newRequest func() once.ClaimRequest) {
				f := newFixture(t)
				r := newRequest()
				if _, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
					ask(t, tx)
					if status := statusInside(t, tx, f, r.Key); status != int(once.Running) {
						t.Errorf("the record has the status %d, want running", status)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				wantStatus(t, f, r.Key, once.Done)
			})
		})
	}
}

// A savepoint that is rolled back restores the record that was written as done.
func TestARolledBackSavepointOfTheConnection(t *testing.T) {
	eachRequest(t, testARolledBackSavepointOfTheConnection)
}

func testARolledBackSavepointOfTheConnection(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r := newRequest()
	if _, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) error {
		inner, err := tx.Begin(t.Context())
		if err != nil {
			return err
		}
		inner.Conn()
		return inner.Rollback(t.Context())
	}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, f, r.Key, once.Done)
}

func TestDuplicatesAtOnceRunOnce(t *testing.T) { eachRequest(t, testDuplicatesAtOnceRunOnce) }

func testDuplicatesAtOnceRunOnce(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	for round := range 5 {
		r := newRequest()
		var ran atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Add(1)
			go func() {
				defer all.Done()
				_, err := transact(t.Context(), f.Store, rival(r), func(tx pgx.Tx) error {
					ran.Add(1)
					return f.write(context.WithoutCancel(t.Context()), tx, strings.Repeat("x", round+1))
				})
				if err != nil {
					t.Error(err)
				}
			}()
		}
		all.Wait()
		if n := ran.Load(); n != 1 {
			t.Errorf("the work ran %d times", n)
		}
		if n := f.count(t, strings.Repeat("x", round+1)); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	}
}

func TestAClaimDoesNotWaitForAnother(t *testing.T) { eachRequest(t, testAClaimDoesNotWaitForAnother) }

func testAClaimDoesNotWaitForAnother(t *testing.T, newRequest func() once.ClaimRequest) {
	f := newFixture(t)
	r := newRequest()
	if _, err := transact(t.Context(), f.Store, r, func(pgx.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rec, err := transact(ctx, f.Store, rival(r), func(pgx.Tx) error {
			t.Error("a duplicate has entered the work")
			return nil
		})
		if err == nil && (rec.Status != once.Running || rec.LeaseLeft != 0) {
			t.Errorf("a duplicate meets %v, want running", rec)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, f, r.Key, once.Done)
}

// Where the snapshot of a transaction is older than its lock, only a row shows
// whose key it is.
func TestAClaimIsWrittenAtOtherLevels(t *testing.T) {
	for level, want := range map[string]int{"read committed": 0, "repeatable read": 1, "serializable": 1} {
		t.Run(level, func(t *testing.T) {
			f := newFixture(t, isolation(pgx.TxIsoLevel(level)))
			r := newLast()
			if _, err := transact(t.Context(), f.Store, r, func(tx pgx.Tx) (err error) {
				rows := 0
				err = tx.QueryRow(t.Context(), `SELECT count(*) FROM `+f.records()+` WHERE id = $1`, r.Key.ID).Scan(&rows)
				if rows != want {
					t.Errorf("%d rows before the commit, want %d", rows, want)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, f, r.Key, once.Done)
		})
	}
}
