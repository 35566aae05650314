//go:build go1.25

package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// A record may wait for hours for its turn. Meanwhile a person may have said that it did not happen and is not to be run,
// or it was done and is forgotten: whoever resumes it then does what nobody wants, or does it twice.
func TestWhatHasMovedOnIsNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ran := memstore.New(nil), make(map[string]int)
		var mu sync.Mutex
		charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend,
			Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: time.Hour}}
		pay := func(ctx context.Context, k once.Key) error {
			_, err := once.Do(ctx, s, charge.For(k.ID), func(context.Context, once.Key) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				ran[k.ID]++
				return "", nil
			})
			return err
		}
		ids := []string{"1", "2", "3", "4"}
		crash(t, s, charge, ids...)
		op, stats := reconcile.Of(charge), new(reconcile.Stats)
		op.PerSecond, op.Resume = 0.0001, pay
		ended := make(chan error, 1)
		go func() {
			r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats}
			ended <- r.Sweep(t.Context())
		}()
		synctest.Wait()
		for _, id := range ids {
			if status(t, s, charge, id) == once.Unknown {
				if err := pay(t.Context(), once.Key{ID: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if ran[id] != 1 {
				t.Errorf("%s ran %d times", id, ran[id])
			}
		}
		if stats.Resumed.Load() != 1 || stats.Overtaken.Load() != 3 {
			t.Errorf("%d resumed, %d overtaken", stats.Resumed.Load(), stats.Overtaken.Load())
		}
	})
}

// Whether the other system still honours a key is judged when it is asked, and not when the record was listed.
func TestAKeyThatRunsOutWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup, KeyValidFor: time.Hour}
		crash(t, s, charge, "1", "2")
		op, stats := reconcile.Of(charge), new(reconcile.Stats)
		op.PerSecond = 0.0001
		r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{op}, Stats: stats}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if stats.Freed.Load() != 1 || stats.Parked.Load() != 1 {
			t.Errorf("%d freed, %d parked", stats.Freed.Load(), stats.Parked.Load())
		}
	})
}
