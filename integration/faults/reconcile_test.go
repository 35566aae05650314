package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/reconcile"
)

// TestReconcile lets more owners than fit on a page vanish, and runs three
// reconcilers at once, beside an owner that is alive.
func TestReconcile(t *testing.T) {
	const vanished = 250
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := with(t, e)
		charge := &once.Operation[string]{Name: "charge", Lookup: func(_ context.Context, k once.Key) (string, bool, error) {
			var n int
			_, err := fmt.Sscanf(k.ID, "gone %d", &n)
			return "charged " + k.ID, n%2 == 0, err
		}}
		claim := func(lease time.Duration, ids ...string) {
			t.Helper()
			var rs []once.ClaimRequest
			for _, id := range ids {
				fence := once.Fence{Key: once.Key{Operation: "charge", ID: id}, Owner: [16]byte{1}}
				rs = append(rs, once.ClaimRequest{Fence: fence, Lease: lease, Wait: time.Minute})
			}
			_, err := d.Store.Transact(t.Context(), rs, func(engine.Tx, []once.Record) ([]once.Settlement, error) { return nil, nil })
			must(t, err)
		}
		var ids []string
		for i := range vanished {
			ids = append(ids, fmt.Sprint("gone ", i))
		}
		claim(time.Millisecond, ids...)
		claim(time.Hour, "alive")
		get := func(id string) once.Record {
			t.Helper()
			rec, err := d.Store.Get(t.Context(), once.Key{Operation: "charge", ID: id})
			must(t, err)
			return rec
		}
		proof.Await(t, "the leases have lapsed", func() bool { return get(ids[0]).Status == once.Unknown })

		stats := new(reconcile.Stats)
		r := reconcile.Reconciler{Store: d.Store, Operations: []reconcile.Operation{reconcile.Of(charge)}, Stats: stats}
		errs := make([]error, 3)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = r.Sweep(t.Context()) })
		}
		all.Wait()
		for _, err := range errs {
			must(t, err)
		}
		for i, id := range ids {
			want := once.Absent
			if i%2 == 0 {
				want = once.Done
			}
			if rec := get(id); rec.Status != want {
				t.Errorf("%s is %v, want %v", id, rec.Status, want)
			}
		}
		if rec := get("alive"); rec.Status != once.Running || rec.Attempt != 1 {
			t.Errorf("the holder that is alive: %+v", rec)
		}
		answer, err := once.Do(t.Context(), d.Store, charge.For(ids[0]), func(context.Context, once.Key) (string, error) {
			t.Error("it ran again")
			return "", nil
		})
		if answer != "charged gone 0" || err != nil {
			t.Errorf("the answer is %q, %v", answer, err)
		}
		must(t, r.Sweep(t.Context()))
		if n := stats.Unknown.Load(); n != 0 {
			t.Errorf("%d are unknown at the end", n)
		}
	})
}
