package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/wire"
)

// TestNothingIsEverHeard has connections that stay open but deliver nothing.
// Each call that needs the server keeps the caller's deadline, and no work
// runs. When the network is back, each unit is done once.
func TestNothingIsEverHeard(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		_, dsn := with(t, e)
		proxy, through := wire.Between(t, dsn, wire.Raw)
		d := e.Connect(t, through)
		worksOnce(t, d, "before") // so that the pool has connections that look healthy
		silent := proxy.On(wire.Any, wire.HangRequest, wire.Always)
		for _, id := range []string{"meanwhile", "before"} {
			failsClosed(t, "silent", d, id)
		}
		inTime(t, d)
		if silent.Hits() < 5 {
			t.Errorf("%d requests met silence, so little was tested", silent.Hits())
		}
		silent.Remove()
		proxy.Cut()
		worksOnce(t, d, "meanwhile")
	}, servers...)
}

// inTime calls each method of a store, with a deadline.
func inTime(t *testing.T, d *engine.Database) {
	t.Helper()
	fence := once.Fence{Key: unreachable.For("in time").Key(), Owner: [16]byte{1}, Attempt: 1}
	r := once.ClaimRequest{Fence: fence, Lease: time.Minute}
	for name, call := range map[string]func(context.Context) error{
		"Claim":  func(ctx context.Context) error { _, err := d.Store.Claim(ctx, r); return err },
		"Extend": func(ctx context.Context) error { return d.Store.Extend(ctx, fence, time.Minute) },
		"Settle": func(ctx context.Context) error {
			return d.Store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked})
		},
		"Get":    func(ctx context.Context) error { _, err := d.Store.Get(ctx, fence.Key); return err },
		"Forget": func(ctx context.Context) error { _, err := d.Store.Forget(ctx, 1); return err },
		"List":   func(ctx context.Context) error { _, err := d.Store.List(ctx, once.RecordQuery{}); return err },
		"Transact": func(ctx context.Context) error {
			_, err := d.Store.Transact(ctx, []once.ClaimRequest{r}, func(tx engine.Tx, _ []once.Record) ([]once.Settlement, error) {
				if _, err := tx.Number(ctx, "SELECT 1"); err != nil {
					return nil, err
				}
				return nil, never(t, "Transact in silence")()
			})
			return err
		},
	} {
		const patience = 200 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begun := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(begun); err == nil || took > patience+2*time.Second {
			t.Errorf("%s in silence: %v after %v", name, err, took)
		}
	}
}

// TestSlowNetwork delays each answer. Nothing is lost or done twice, and a
// lease that is shorter than several round trips is either kept or given up in
// time.
func TestSlowNetwork(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		direct, dsn := with(t, e)
		proxy, through := wire.Between(t, dsn, wire.Raw)
		d := e.Connect(t, through)
		worksOnce(t, d, "before")
		const delay = 40 * time.Millisecond
		slow := proxy.On(wire.Any, wire.Delay(delay), wire.Always)
		race(t, []*engine.Database{d, direct}, "raced")
		worksOnce(t, d, "slow")
		for i := range 3 {
			heldThroughout(t, d, fmt.Sprint("held ", i), 25*delay)
		}
		if slow.Hits() < 10 {
			t.Errorf("%d requests were slow, so little was tested", slow.Hits())
		}
	}, servers...)
}

// heldThroughout does work that takes longer than its lease.
func heldThroughout(t *testing.T, d *engine.Database, id string, lease time.Duration) {
	t.Helper()
	op := &once.Operation[string]{Name: "held", OnUnknown: once.Park, Policy: once.Policy{Lease: lease}}
	ran := 0
	for range 2 {
		answer, err := once.Do(t.Context(), d.Store, op.For(id), func(ctx context.Context, _ once.Key) (string, error) {
			ran++
			timer := time.NewTimer(3 * lease)
			defer timer.Stop()
			select {
			case <-timer.C:
				return "answer", nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})
		if err == nil && answer != "answer" || ran != 1 {
			t.Errorf("%s: %q, %v after %d runs", id, answer, err, ran)
		}
	}
}
