package pgstore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Claims that would wait for a connection are sent together, and each gets its
// own result.
func TestClaimsThatWaitGoTogether(t *testing.T) {
	w := &wire{}
	f := newFixture(t, w.into, mode(pgx.QueryExecModeExec), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	known := newRequest()
	if _, err := f.Claim(t.Context(), known); err != nil { // also opens the connection
		t.Fatal(err)
	}
	block, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer block.Rollback(context.Background())
	if _, err := block.Exec(t.Context(), `LOCK TABLE `+f.records()+` IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}

	const n = 20
	rs := make([]once.ClaimRequest, n+1) // the first is sent by itself
	for i := range rs {
		rs[i] = newRequest()
		rs[i].AsyncCommit = i > n/2
	}
	rs[n-1].Key = known.Key // taken
	rs[n].Key = rs[n-2].Key // the same key twice among those that wait
	recs := make([]once.Record, len(rs))
	var wg sync.WaitGroup
	start := func(i int) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if recs[i], err = f.Claim(t.Context(), rs[i]); err != nil {
				t.Errorf("claim %d: %v", i, err)
			}
		}()
	}
	before := w.trips.Load()
	start(0)
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 1 })
	for i := 1; i < len(rs); i++ {
		start(i)
	}
	waitFor(t, func() bool { return f.Waiting() == n })
	if err := block.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()

	for i, rec := range recs {
		switch {
		case i == n-1:
			if rec.Owner != known.Owner {
				t.Errorf("the claim of a key that is taken: %+v", rec)
			}
		case i == n || i == n-2:
			if rec.Owner != rs[n].Owner && rec.Owner != rs[n-2].Owner {
				t.Errorf("a claim of the same key as another: %+v", rec)
			}
		case rec.Key != rs[i].Key || rec.Owner != rs[i].Owner || rec.Status != once.Running || rec.Attempt != 1 || rec.Created.IsZero():
			t.Errorf("claim %d: %+v", i, rec)
		}
	}
	if recs[n].Owner != recs[n-2].Owner {
		t.Error("two claims of one key were both won")
	}
	// One claim is sent by itself, the others in two statements, by how they
	// commit. The two claims that were lost are sent once more.
	if trips := w.trips.Load() - before; trips != 5 {
		t.Errorf("%d claims took %d round trips, want 5", len(rs), trips)
	}
}

// A caller that returns early does not disturb the claims that are sent with
// its own.
func TestACallerLeavesTheClaimsThatGoTogether(t *testing.T) {
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	first, leaver, other := newRequest(), newRequest(), newRequest()
	if _, err := f.Get(t.Context(), first.Key); err != nil {
		t.Fatal(err)
	}
	block, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer block.Rollback(context.Background())
	if _, err := block.Exec(t.Context(), `LOCK TABLE `+f.records()+` IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	claim := func(ctx context.Context, r once.ClaimRequest, want func(once.Record, error) bool) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if rec, err := f.Claim(ctx, r); !want(rec, err) {
				t.Errorf("%+v, %v", rec, err)
			}
		}()
	}
	mine := func(r once.ClaimRequest) func(once.Record, error) bool {
		return func(rec once.Record, err error) bool { return err == nil && rec.Owner == r.Owner }
	}
	claim(t.Context(), first, mine(first))
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 1 })
	claim(ctx, leaver, func(_ once.Record, err error) bool { return err != nil })
	claim(t.Context(), other, mine(other))
	waitFor(t, func() bool { return f.Waiting() == 2 })
	cancel()
	waitFor(t, func() bool { return f.Waiting() == 1 })
	if err := block.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	wantStatus(t, f, leaver.Key, once.Absent) // its caller has returned, so it was not sent
	wantStatus(t, f, other.Key, once.Running)
}
