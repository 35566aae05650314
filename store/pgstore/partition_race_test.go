package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// always is a Partition that is over at once: each Forget adds another one, if
// it can.
const always = time.Nanosecond

func (f *fixture) number(t testing.TB, sql string, args ...any) (n int) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *fixture) newest(t testing.TB) int {
	return f.number(t, `SELECT max(id) FROM `+f.schema+`.once_part`)
}

func (f *fixture) partOf(t testing.TB, k once.Key) int {
	t.Helper()
	return f.number(t, `SELECT part FROM `+f.records()+` WHERE key = $1`, k.String())
}

// forget calls Forget with a limit at which records that are still needed stay
// in their partition.
func (f *fixture) forget(t testing.TB) int {
	t.Helper()
	n, err := f.Forget(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// forgotten returns a key that was done and has expired.
func (f *fixture) forgotten(t testing.TB) once.ClaimRequest {
	t.Helper()
	r := newRequest()
	rec, err := f.Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	set := done(rec, "old")
	set.KeepOutcome, set.KeepKey = time.Millisecond, time.Millisecond
	if err := f.Settle(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return get(t, f, r.Key).Status == once.Absent })
	return r
}

// Keys that are asked for concurrently have one effect, while partitions are
// added and dropped.
func TestDuplicatesBesideRotation(t *testing.T) {
	f := newPartitioned(t, always)
	stores := make([]*pgstore.Store, 4)
	for i := range stores {
		stores[i] = pgstore.New(pool(t, server(t)), &pgstore.Options{Schema: f.schema, Partition: always})
	}
	janitor(t, stores[0], 3*time.Millisecond)
	janitor(t, stores[1], 5*time.Millisecond)
	op := &once.Operation[int]{Name: "pay", Policy: once.Policy{Wait: 20 * time.Second}}
	const rounds, crowd = 6, 64
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range crowd {
			wg.Add(1)
			go func() {
				defer wg.Done()
				s, id := stores[i%len(stores)], fmt.Sprint(round)
				answer, err := once.DoTx(t.Context(), s, op.For(id), func(ctx context.Context, tx pgx.Tx) (int, error) {
					return 7, f.write(ctx, tx, id)
				})
				if err != nil || answer != 7 {
					t.Errorf("got %d, %v", answer, err)
				}
			}()
		}
		wg.Wait()
		for range 16 { // that expires
			f.forgotten(t)
		}
		if n := f.count(t, fmt.Sprint(round)); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	}
	if n := f.number(t, `SELECT count(*) FROM (SELECT FROM `+f.records()+` GROUP BY key HAVING count(*) > 1) AS twice`); n != 0 {
		t.Errorf("%d keys are in two partitions", n)
	}
	have, made := f.number(t, `SELECT count(*) FROM `+f.schema+`.once_part`), f.newest(t)
	if made < rounds || have == made {
		t.Errorf("of %d partitions, %d are there still", made, have)
	}
	for round := range rounds {
		if _, err := once.DoTx(t.Context(), f.Store, op.For(fmt.Sprint(round)), func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 0, fmt.Errorf("round %d ran again", round)
		}); err != nil {
			t.Error(err)
		}
	}
}

// A partition with rows of a transaction in flight is not dropped, and the rows
// stay visible.
func TestPartitionOfClaimInFlight(t *testing.T) {
	f := newPartitioned(t, always)
	old, pin := f.forgotten(t), newRequest()
	pinned, err := f.Claim(t.Context(), pin)
	if err != nil {
		t.Fatal(err)
	}
	if f.forget(t); f.newest(t) != 2 || f.partOf(t, old.Key) != 1 {
		t.Fatalf("the newest partition is %d", f.newest(t))
	}
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	fresh := newRequest()
	recs, err := f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(old), fresh})
	if err != nil || recs[0].Attempt != 1 || recs[1].Attempt != 1 {
		t.Fatalf("got %+v, %v", recs, err)
	}
	set := done(pinned, "")
	set.KeepOutcome, set.KeepKey = time.Millisecond, time.Millisecond
	if err := f.Settle(t.Context(), set); err != nil { // nothing else needs the old partition
		t.Fatal(err)
	}
	waitFor(t, func() bool { return get(t, f, pin.Key).Status == once.Absent })
	for range 3 {
		must(t, f.admin, `UPDATE `+f.schema+`.once_part SET tried = 0, due = 0`)
		f.forget(t)
	}
	if f.newest(t) != 2 || f.number(t, `SELECT count(*) FROM `+f.schema+`.once_part`) != 2 {
		t.Error("the partitions have changed under a transaction in flight")
	}
	for _, r := range []once.ClaimRequest{old, fresh} {
		if rec, err := f.Claim(t.Context(), rival(r)); err != nil || rec.Status != once.Running || rec.LeaseLeft != 0 {
			t.Errorf("a claim that meets it: %+v, %v", rec, err)
		}
	}
	later := newRequest()
	if _, err := f.Claim(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	recs, err = f.ClaimTx(t.Context(), tx, []once.ClaimRequest{rival(later)})
	if err != nil || recs[0].Owner != later.Owner {
		t.Errorf("it does not see what was claimed meanwhile: %+v, %v", recs, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		f.forget(t)
		return f.newest(t) > 3 && f.number(t, `SELECT min(id) FROM `+f.schema+`.once_part`) > 1
	})
	wantStatus(t, f, old.Key, once.Running)
	wantStatus(t, f, fresh.Key, once.Running)
}

// A record in an old partition is found by each call.
func TestRecordsInOldPartitions(t *testing.T) {
	f := newPartitioned(t, always)
	requests := make(map[string]once.ClaimRequest)
	records := make(map[string]once.Record)
	for _, name := range []string{"done", "running", "late", "unknown", "parked", "released", "other"} {
		r := newRequest()
		rec, err := f.Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		requests[name], records[name] = r, rec
	}
	settle := func(name string, status once.Status) {
		t.Helper()
		set := done(records[name], "answer")
		set.Status = status
		if err := f.Settle(t.Context(), set); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	settle("done", once.Done)
	settle("unknown", once.Unknown)
	settle("parked", once.Parked)
	settle("released", once.Absent)
	f.forget(t)
	if f.newest(t) != 2 || f.partOf(t, requests["unknown"].Key) != 1 {
		t.Fatalf("the newest partition is %d", f.newest(t))
	}

	work := func(tx pgx.Tx) error { return f.write(t.Context(), tx, "again") }
	early := func(out once.Outcome) func(once.ClaimRequest) (once.Record, error) {
		return func(r once.ClaimRequest) (once.Record, error) {
			expected := done(once.Record{}, "ok")
			expected.Outcome = out
			r.Speculative, r.Expected = true, &expected
			return transact(t.Context(), f.Store, r, work)
		}
	}
	for _, claim := range []func(once.ClaimRequest) (once.Record, error){
		func(r once.ClaimRequest) (once.Record, error) { return f.Claim(t.Context(), r) },
		func(r once.ClaimRequest) (once.Record, error) { return transact(t.Context(), f.Store, r, work) },
		early(once.Outcome{}), early(done(once.Record{}, "ok").Outcome),
	} {
		rec, err := claim(rival(requests["done"]))
		if err != nil || string(rec.Outcome.Body) != "answer" {
			t.Errorf("replay: %+v, %v", rec, err)
		}
		if rec, err = claim(rival(requests["parked"])); err != nil || rec.Status != once.Parked {
			t.Errorf("parked: %+v, %v", rec, err)
		}
	}
	if n := f.count(t, "again"); n != 0 {
		t.Errorf("what was done already had %d more effects", n)
	}
	fence := once.Fence{Key: requests["running"].Key, Owner: requests["running"].Owner, Attempt: 1}
	if err := f.Extend(t.Context(), fence, time.Hour); err != nil || get(t, f, fence.Key).LeaseLeft < time.Minute {
		t.Errorf("Extend: %v", err)
	}
	settle("late", once.Done)
	settle("late", once.Done)
	wantStatus(t, f, requests["late"].Key, once.Done)
	settle("parked", once.Done)
	wantStatus(t, f, requests["parked"].Key, once.Done)

	for _, name := range []string{"unknown", "released"} {
		r := rival(requests[name])
		r.Attempt = 1
		rec, err := f.Claim(t.Context(), r)
		if err != nil || rec.Owner != r.Owner || rec.Attempt != 2 || !rec.Created.Equal(records[name].Created) {
			t.Errorf("%s: %+v, %v", name, rec, err)
		}
		if part := f.partOf(t, r.Key); part != 2 {
			t.Errorf("%s: taken over into the partition %d", name, part)
		}
	}
	page, err := f.List(t.Context(), once.RecordQuery{Limit: 5})
	if err != nil || len(page.Records) != 5 {
		t.Fatalf("List: %d, %v", len(page.Records), err)
	}
	rest, err := f.List(t.Context(), once.RecordQuery{Limit: 5, After: page.Next})
	if err != nil || len(rest.Records) != 2 || rest.Next != (once.Key{}) {
		t.Errorf("List: %d more, %v", len(rest.Records), err)
	}
}

// If a claim takes over an unknown record while its settlement is in flight,
// there is one record, and it is done.
func TestTakeoverMeetsSettlement(t *testing.T) {
	f := newPartitioned(t, always)
	r := newRequest()
	rec, err := f.Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	set := done(rec, "answer")
	set.Status = once.Unknown
	if err := f.Settle(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `UPDATE `+f.schema+`.once_part SET due = $1`, time.Now().Add(time.Hour).UnixMicro())
	f.rotate(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	set.Status = once.Done
	if err := f.SettleTx(t.Context(), tx, []once.Settlement{set}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan once.Record, 1)
	go func() {
		next := rival(r)
		next.Attempt = 1
		rec, err := f.Claim(t.Context(), next)
		if err != nil {
			t.Error(err)
		}
		answered <- rec
	}()
	waitFor(t, func() bool {
		return f.number(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%`+f.schema+`%DELETE FROM%'`) > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rec := <-answered; rec.Status != once.Done || rec.Attempt != 1 {
		t.Errorf("the claim returned %+v", rec)
	}
	if n := f.number(t, `SELECT count(*) FROM `+f.records()); n != 1 {
		t.Errorf("there are %d records of the key", n)
	}
}
