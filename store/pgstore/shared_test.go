package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// withSQL returns a sqlstore on the tables of a fixture.
func withSQL(t *testing.T, f *fixture) *sqlstore.Store {
	t.Helper()
	db, err := sql.Open("pgx", server(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return sqlstore.New(db, sqlstore.PostgreSQL, &sqlstore.Options{Schema: f.schema})
}

// Each of the two stores reads, settles, repeats and forgets what the other has
// written.
func TestRowsAreThoseOfSqlstore(t *testing.T) {
	f := newFixture(t)
	stores := []interface {
		once.Store
		once.Lister
	}{f.Store, withSQL(t, f)}
	for i, s := range stores {
		other := stores[1-i]
		r := newRequest()
		r.Fingerprint = []byte("print")
		rec, err := s.Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		same := func(when string) {
			t.Helper()
			a, b := get(t, s, r.Key), get(t, other, r.Key)
			if a.LeaseLeft < b.LeaseLeft || a.LeaseLeft > b.LeaseLeft+time.Minute || a.Age > b.Age {
				t.Errorf("%s: %+v and %+v", when, a, b)
			}
			a.LeaseLeft, a.Age = b.LeaseLeft, b.Age
			if string(a.Outcome.Body) != string(b.Outcome.Body) || string(a.Fingerprint) != string(b.Fingerprint) {
				t.Errorf("%s: %+v and %+v", when, a, b)
			}
			a.Outcome.Body, a.Fingerprint = b.Outcome.Body, b.Fingerprint
			if !sameRecord(a, b) {
				t.Errorf("%s: %+v and %+v", when, a, b)
			}
		}
		same("claimed")
		set := done(rec, "answer")
		for _, status := range []once.Status{once.Unknown, once.Parked, once.Absent} {
			set.Status, set.Reason = status, "because of "+status.String()
			if err := errors.Join(other.Settle(t.Context(), set), s.Settle(t.Context(), set)); err != nil {
				t.Errorf("%v: %v", status, err)
			}
			same(status.String())
		}
		if rec, err = other.Claim(t.Context(), rival(r)); err != nil || rec.Attempt != 2 {
			t.Fatalf("got %+v, %v", rec, err)
		}
		same("claimed again")
		set = done(rec, "answer")
		set.Outcome.Rejected, set.KeepOutcome = true, time.Hour
		if err := errors.Join(s.Settle(t.Context(), set), other.Settle(t.Context(), set)); err != nil {
			t.Error(err)
		}
		same("done")
		must(t, f.admin, `UPDATE `+f.records()+` SET outcome_until = 1, due = 1 WHERE key = $1`, r.Key.String())
		same("expired")
		for want := range 2 {
			if n, err := s.Forget(t.Context(), 10); err != nil || n != 1-want {
				t.Errorf("Forget: %d, %v", n, err)
			}
			same("forgotten in part")
		}
		must(t, f.admin, `UPDATE `+f.records()+` SET key_until = 1, updated = 1, due = 1 WHERE key = $1`, r.Key.String())
		same("forgotten")
		if n, err := other.Forget(t.Context(), 10); err != nil || n != 1 {
			t.Errorf("Forget: %d, %v", n, err)
		}
	}
	for range 5 {
		if _, err := f.Claim(t.Context(), newRequest()); err != nil {
			t.Fatal(err)
		}
	}
	var pages [2][]once.Key
	for i, s := range stores {
		for q := (once.RecordQuery{Limit: 2, Status: []once.Status{once.Running}}); ; {
			page, err := s.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range page.Records {
				pages[i] = append(pages[i], rec.Key)
			}
			if q.After = page.Next; q.After == (once.Key{}) {
				break
			}
		}
	}
	if len(pages[0]) != 5 || !slices.Equal(pages[0], pages[1]) {
		t.Errorf("List: %v and %v", pages[0], pages[1])
	}
}

func sameRecord(a, b once.Record) bool {
	return a.Key == b.Key && a.Status == b.Status && a.Attempt == b.Attempt && a.Owner == b.Owner && a.Reason == b.Reason &&
		a.Created.Equal(b.Created) && a.Updated.Equal(b.Updated) && a.Outcome.ContentType == b.Outcome.ContentType &&
		a.Outcome.Rejected == b.Outcome.Rejected && a.Outcome.Omitted == b.Outcome.Omitted && a.Outcome.Sum == b.Outcome.Sum
}

// The two stores see each other's transactions in flight, and have one effect
// together.
func TestDuplicatesAcrossSqlstore(t *testing.T) {
	f := newFixture(t)
	other := withSQL(t, f)
	r := newRequest()
	_, err := transact(t.Context(), f.Store, r, func(pgx.Tx) error {
		rec, err := other.Claim(t.Context(), rival(r))
		if rec.Status != once.Running || rec.LeaseLeft != 0 {
			t.Errorf("sqlstore meets a transaction of pgstore: %+v", rec)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	r = newRequest()
	_, err = other.Transact(t.Context(), []once.ClaimRequest{r}, func(_ *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
		rec, err := f.Claim(t.Context(), rival(r))
		if rec.Status != once.Running || rec.LeaseLeft != 0 {
			t.Errorf("pgstore meets a transaction of sqlstore: %+v", rec)
		}
		return []once.Settlement{done(recs[0], "ok")}, err
	})
	if err != nil {
		t.Error(err)
	}

	op := &once.Operation[int]{Name: "pay", Policy: once.Policy{Wait: 20 * time.Second}}
	native := []*pgstore.Store{f.Store, f.again(t)}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var answer int
			var err error
			if i%2 == 0 {
				answer, err = once.DoTx(t.Context(), native[i/2%2], op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
					return 7, f.write(ctx, tx, "shared")
				})
			} else {
				answer, err = once.DoTx(t.Context(), other, op.For("1"), func(ctx context.Context, tx *sql.Tx) (int, error) {
					_, err := tx.ExecContext(ctx, `INSERT INTO `+f.effects()+` VALUES ($1)`, "shared")
					return 7, err
				})
			}
			if err != nil || answer != 7 {
				t.Errorf("got %d, %v", answer, err)
			}
		}()
	}
	wg.Wait()
	if n := f.count(t, "shared"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}
