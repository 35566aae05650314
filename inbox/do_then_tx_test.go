package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// provider is a system that charges, and forgets no key.
type provider struct {
	mu      sync.Mutex
	charges map[string]int
}

func (p *provider) charge(key once.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.charges == nil {
		p.charges = make(map[string]int)
	}
	p.charges[key.ID]++
}

func (p *provider) find(_ context.Context, key once.Key) (string, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return "charge of " + key.ID, p.charges[key.ID] > 0, nil
}

// However the process dies, the charge is made once, and its row is written once.
func TestAChargeAndItsRowAreBothMadeOnce(t *testing.T) {
	for _, dies := range []string{"never", "before the charge", "after the charge", "in the rows", "in the rows twice", "on the shelf"} {
		t.Run(dies, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				psp := new(provider)
				var calls, rows atomic.Int64
				dead := make(chan struct{}, 10)
				die := func() {
					dead <- struct{}{}
					runtime.Goexit()
				}
				op := &once.Operation[string]{Name: "charge", Lookup: psp.find, Policy: once.Policy{Lease: time.Second}}
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(10), Stats: new(inbox.Stats)}
				c.Handler = inbox.DoThenTx(b.store, op, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
					n := calls.Add(1)
					if n == 1 && dies == "before the charge" {
						die()
					}
					psp.charge(key)
					if n == 1 && dies == "after the charge" {
						die()
					}
					return "charge of " + key.ID, nil
				}, func(ctx context.Context, tx mtx, m *broker.Message, charge string) error {
					if charge != "charge of m0" {
						t.Errorf("the row gets the charge %q", charge)
					}
					switch n := rows.Add(1); {
					case n == 1 && dies == "in the rows", n <= 2 && dies == "in the rows twice":
						b.effect(ctx, tx, m)
						die()
					case n == 1 && dies == "on the shelf":
						return once.RetryAfter(10*time.Second, errors.New("not now"))
					}
					return b.effect(ctx, tx, m)
				})
				b.publish("orders", message("m0"))
				start(t, c)
				stopped := make(chan struct{})
				defer close(stopped)
				go func() { // what a process had that died is delivered again
					for {
						select {
						case <-dead:
							b.broker.Restart()
						case <-stopped:
							return
						}
					}
				}()
				await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 || c.Stats.Parked.Load() > 0 })
				if psp.charges["m0"] != 1 || b.count("m0") != 1 {
					t.Errorf("%d charges, %d rows; parked: %+v", psp.charges["m0"], b.count("m0"), b.onTheShelf(store.Parked))
				}
				b.publish("orders", message("m0"))
				await(t, "a copy", func() bool { return c.Stats.Duplicates.Load() >= 1 })
				if psp.charges["m0"] != 1 || b.count("m0") != 1 {
					t.Errorf("after a copy, %d charges and %d rows", psp.charges["m0"], b.count("m0"))
				}
			})
		})
	}
}

func TestErrorsOfAStepMeanWhatTheyDoInADoHandler(t *testing.T) {
	for _, c := range []struct {
		name             string
		err              error
		calls            int64
		handled, parked  int64
		reasonOfTheShelf string
	}{
		{"rejected", once.ErrRejected, 1, 1, 0, ""},
		{"permanent", once.NotDone(once.Permanent(errors.New("no such account"))), 1, 0, 1, "no such account"},
		{"not done", once.NotDone(errors.New("refused")), 3, 0, 1, "refused"},
		{"unknown", errors.New("timeout"), 1, 0, 1, "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var calls atomic.Int64
				of := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(3), Stats: new(inbox.Stats)}
				of.Handler = inbox.DoThenTx(b.store, &once.Operation[string]{Name: "charge", OnUnknown: once.Park},
					func(context.Context, once.Key, *broker.Message) (string, error) {
						calls.Add(1)
						return "", c.err
					}, func(ctx context.Context, tx mtx, m *broker.Message, _ string) error { return b.effect(ctx, tx, m) })
				start(t, of)
				b.publish("orders", message("m0"))
				await(t, "settled", func() bool { return of.Stats.Handled.Load()+of.Stats.Parked.Load() > 0 })
				if of.Stats.Handled.Load() != c.handled || of.Stats.Parked.Load() != c.parked || calls.Load() != c.calls || b.count("m0") != 0 {
					t.Errorf("%d calls, %d handled, %d parked, %d rows; shelf: %+v", calls.Load(), of.Stats.Handled.Load(), of.Stats.Parked.Load(),
						b.count("m0"), b.onTheShelf())
				}
			})
		})
	}
}

// After a person has decided about the step, the message is replayed, and its rows
// are written.
func TestAParkedStepIsDecidedAndItsMessageReplayed(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		op := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(3), Stats: new(inbox.Stats)}
		var got atomic.Value
		c.Handler = inbox.DoThenTx(b.store, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			return "", errors.New("timeout")
		}, func(ctx context.Context, tx mtx, m *broker.Message, charge string) error {
			got.Store(charge)
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		rec, err := b.store.Get(t.Context(), op.Under(once.Key{Operation: "billing", ID: "m0"}).Key())
		if err != nil || rec.Status != once.Parked {
			t.Fatalf("the step is %v, %v", rec.Status, err)
		}
		out, err := op.Outcome("charge 17")
		if err == nil {
			err = once.MarkDone(t.Context(), b.store, rec, out, "seen at the provider")
		}
		if err != nil {
			t.Fatal(err)
		}
		tally, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{IDs: []string{"m0"}}, inbox.Decision{By: "me", Reason: "decided"})
		if err != nil || tally.Changed != 1 {
			t.Fatal(tally, err)
		}
		await(t, "handled", func() bool { return b.count("m0") == 1 })
		if got.Load() != "charge 17" {
			t.Errorf("the row gets %v", got.Load())
		}
	})
}
