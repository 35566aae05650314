package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ends are the ways to settle the claims of a transaction.
var ends = []once.Status{once.Done, once.Absent, once.Unknown, once.Parked, once.Running}

// several claims new keys, with one among them that is done, and settles each
// in a way of its own.
func several(t *testing.T, s *pgstore.Store) []once.ClaimRequest {
	t.Helper()
	var rs []once.ClaimRequest
	for i := range ends {
		r := newRequest()
		r.Key.Scope, r.Fingerprint = `o'k {"\%_, NULL é`, []byte{0, 0xff, byte(i)}
		rs = append(rs, r)
	}
	rs[3].Fingerprint = nil
	known := newRequest()
	if _, err := transact(t.Context(), s, known, nothing); err != nil {
		t.Fatal(err)
	}
	rs = append(rs, known)
	recs, err := s.Transact(t.Context(), rs, func(_ pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
		for i, end := range ends {
			if recs[i].Key != rs[i].Key || recs[i].Status != once.Running || recs[i].Owner != rs[i].Owner || recs[i].Attempt != 1 {
				t.Errorf("claim %d: %+v", i, recs[i])
			}
			set := done(recs[i], "a\x00'\\\"{,}")
			if set.Status = end; end != once.Done {
				set.Outcome, set.Reason = once.Outcome{}, `because "it", {is}`
			}
			if end != once.Running {
				sets = append(sets, set)
			}
		}
		return sets, nil
	})
	if err != nil || len(recs) != len(rs) || recs[len(ends)].Status != once.Done {
		t.Fatalf("%+v, %v", recs, err)
	}
	return rs
}

func TestSeveralInEachExecMode(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(m.String(), func(t *testing.T) {
			f := newFixture(t, mode(m))
			rs := several(t, f.Store)
			for i, end := range ends {
				rec := get(t, f, rs[i].Key)
				if rec.Status != end || !bytes.Equal(rec.Fingerprint, rs[i].Fingerprint) || rec.Attempt != 1 || rec.Created.IsZero() {
					t.Errorf("settled as %v: %+v", end, rec)
				}
				if end == once.Done && string(rec.Outcome.Body) != "a\x00'\\\"{,}" || end == once.Running && rec.LeaseLeft <= 0 ||
					end == once.Unknown && rec.LeaseLeft >= 0 || end == once.Parked && rec.Reason != `because "it", {is}` {
					t.Errorf("settled as %v: %+v", end, rec)
				}
			}
		})
	}
}

func TestSeveralTakeTwoRoundTrips(t *testing.T) {
	w := &wire{}
	f := newFixture(t, w.into, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	work := func() {
		rs := make([]once.ClaimRequest, 64)
		for i := range rs {
			rs[i] = newRequest()
		}
		_, err := f.Transact(t.Context(), rs, func(_ pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
			for _, rec := range recs {
				sets = append(sets, done(rec, "ok"))
			}
			return sets, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	work()
	before := w.trips.Load()
	if work(); w.trips.Load()-before != 2 {
		t.Errorf("64 claims take %d round trips, want 2", w.trips.Load()-before)
	}
}

// If a transaction claims a key twice, the first request gets it.
func TestSeveralWithOneKeyTwice(t *testing.T) {
	f := newFixture(t)
	first, second := newRequest(), newRequest()
	second.Key = first.Key
	recs, err := f.Transact(t.Context(), []once.ClaimRequest{first, second}, func(_ pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		return []once.Settlement{done(recs[0], "ok")}, nil
	})
	if err != nil || recs[0].Owner != first.Owner || recs[1].Owner != first.Owner {
		t.Fatalf("%+v, %v", recs, err)
	}
	wantStatus(t, f, first.Key, once.Done)
}

// Several claims do not wait for a key that another transaction has in flight,
// and its work is not run.
func TestSeveralMeetATransactionInFlight(t *testing.T) {
	f := newFixture(t)
	first := []once.ClaimRequest{newRequest(), newRequest()}
	second := []once.ClaimRequest{newRequest(), newRequest()}
	second[0].Key = first[1].Key
	_, err := f.Transact(t.Context(), first, func(_ pgx.Tx, mine []once.Record) ([]once.Settlement, error) {
		_, err := f.Transact(t.Context(), second, func(_ pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
			if recs[0].Status != once.Running || recs[0].Owner == second[0].Owner || recs[1].Owner != second[1].Owner {
				t.Errorf("a key in flight is claimed as %+v, and another as %+v", recs[0], recs[1])
			}
			return []once.Settlement{done(recs[1], "ok")}, nil
		})
		return []once.Settlement{done(mine[0], "ok"), done(mine[1], "ok")}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, f, second[1].Key, once.Done)
}

// Transactions over the same keys in different orders have one effect for each
// key, and do not wait for each other.
func TestSeveralRace(t *testing.T) {
	f := newFixture(t)
	const keys, rivals = 12, 16
	rs := make([]once.ClaimRequest, keys)
	for i := range rs {
		rs[i] = newRequest()
	}
	var wg sync.WaitGroup
	for who := range rivals {
		mine := make([]once.ClaimRequest, keys)
		for i := range mine {
			mine[i] = rs[(i*5+who)%keys]
			mine[i].Owner = random()
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			end := time.Now().Add(testenv.Patience)
			for left := keys; left > 0 && time.Now().Before(end); {
				recs, err := f.Transact(t.Context(), mine, func(tx pgx.Tx, recs []once.Record) (sets []once.Settlement, err error) {
					for i, rec := range recs {
						if rec.Status == once.Running && rec.Owner == mine[i].Owner {
							sets, err = append(sets, done(rec, "ok")), f.write(t.Context(), tx, rec.Key.ID)
						}
						if err != nil {
							return nil, err
						}
					}
					return sets, nil
				})
				left = keys
				for i, rec := range recs {
					if err == nil && (rec.Status == once.Done || rec.Owner == mine[i].Owner) {
						left--
					}
				}
			}
		}()
	}
	wg.Wait()
	for _, r := range rs {
		wantStatus(t, f, r.Key, once.Done)
		if n := f.count(t, r.Key.ID); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	}
}

// If another call commits between the look at a key and its lock, that is
// noticed when the record is written.
func TestSeveralMeetARowThatTheyDidNotSee(t *testing.T) {
	f := newFixture(t)
	rs := []once.ClaimRequest{newRequest(), newRequest()}
	_, err := f.Transact(t.Context(), rs, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		must(t, f.admin, fmt.Sprintf(`INSERT INTO %s (key, scope, operation, id, status, attempt, created, updated)
			VALUES ($1, 'tenant', 'test', $2, 1, 1, 0, 0)`, f.records()), rs[1].Key.String(), rs[1].Key.ID)
		return []once.Settlement{done(recs[0], "ok"), done(recs[1], "ok")}, f.write(t.Context(), tx, "a")
	})
	wantError(t, err, once.ErrConflict)
	wantStatus(t, f, rs[0].Key, once.Absent)
	if n := f.count(t, "a"); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
}

// A transaction that claims a key that it has already claimed does not win it
// again.
func TestSeveralAndOneOfTheirOwnKeys(t *testing.T) {
	f := newFixture(t)
	op := &once.Operation[string]{Name: "step"}
	r1, r2 := newRequest(), newRequest()
	r1.Key = op.For("a").Key()
	entered := 0
	_, err := f.Transact(t.Context(), []once.ClaimRequest{r1, r2}, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		_, err := once.InTx(t.Context(), f.Store, tx, op.For("a"), func(context.Context) (string, error) {
			entered++
			return "x", f.write(t.Context(), tx, "effect")
		})
		if !errors.Is(err, once.ErrInProgress) {
			t.Errorf("InTx on a key that this very transaction holds: %v, want ErrInProgress", err)
		}
		return []once.Settlement{done(recs[0], "ok"), done(recs[1], "ok")}, nil
	})
	if err != nil || entered > 0 {
		t.Errorf("entered %d times, %v", entered, err)
	}
}

// If a store that does not know the locks commits after the look at the keys,
// and the handler fails because of its row, that is a conflict, and is tried
// again.
func TestSeveralFailOverTheRowsOfARival(t *testing.T) {
	f := newFixture(t)
	must(t, f.admin, `CREATE UNIQUE INDEX ON `+f.effects()+` (name)`)
	rs := []once.ClaimRequest{newRequest(), newRequest()}
	_, err := f.Transact(t.Context(), rs, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		// as a store does that names the same tables in another way
		must(t, f.admin, fmt.Sprintf(`INSERT INTO %s (key, scope, operation, id, status, attempt, owner, outcome, outcome_until, key_until, created, updated)
			VALUES ($1, 'tenant', 'test', $2, 4, 1, gen_random_uuid(), '', 9e18::bigint, 9e18::bigint, 0, 0)`, f.records()), rs[1].Key.String(), rs[1].Key.ID)
		must(t, f.admin, `INSERT INTO `+f.effects()+` VALUES ('a')`)
		return []once.Settlement{done(recs[0], "ok"), done(recs[1], "ok")}, f.write(t.Context(), tx, "a")
	})
	wantError(t, err, once.ErrConflict)
}
