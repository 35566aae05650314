//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// An attempt on the shelf that does not find out what became of the step has
// failed, as it has in the session: the system that is asked is not asked for ever,
// and not before it can know.
func TestAStepOfUnknownOutcomeUsesUpItsAttemptsOnTheShelf(t *testing.T) {
	for _, c := range []struct {
		name            string
		answer          error
		settle          time.Duration
		handled, parked int64
		charges, asked  int64
	}{
		{"Lookup fails", errors.New("the search is down"), 0, 0, 1, 1, 2},
		{"it can still arrive", nil, time.Hour, 1, 0, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				var charges, asked atomic.Int64
				op := &once.Operation[string]{Name: "charge", SettleTime: c.settle, Lookup: func(context.Context, once.Key) (string, bool, error) {
					asked.Add(1)
					return "", false, c.answer
				}}
				of := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(3), Stats: new(inbox.Stats)}
				of.Handler = inbox.DoThenTx(b.store, op, func(context.Context, once.Key, *broker.Message) (string, error) {
					if charges.Add(1) == 1 {
						return "", once.RetryAfter(10*time.Second, errors.New("timeout"))
					}
					return "", nil
				}, func(ctx context.Context, tx mtx, m *broker.Message, _ string) error { return b.effect(ctx, tx, m) })
				start(t, of)
				b.publish("orders", message("m0"))
				sleepUntil(2*time.Hour, func() bool { return of.Stats.Handled.Load()+of.Stats.Parked.Load() > 0 })
				if of.Stats.Handled.Load() != c.handled || of.Stats.Parked.Load() != c.parked || charges.Load() != c.charges || asked.Load() != c.asked {
					t.Errorf("%d handled, %d parked, %d charges, asked %d times; shelf: %+v", of.Stats.Handled.Load(), of.Stats.Parked.Load(),
						charges.Load(), asked.Load(), b.onTheShelf())
				}
			})
		})
	}
}

// A message is replayed, or comes again, when the key of its step is forgotten. The
// effect is not made again without asking whether it happened, or a person.
func TestAForgottenStepIsNotTakenAgain(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		name    string
		op      once.Operation[string]
		after   time.Duration
		asked   bool
		decides bool // a person has to
	}{
		{"young", once.Operation[string]{OnUnknown: once.Park}, 20 * day, false, false},
		{"young, with a policy of the step", once.Operation[string]{OnUnknown: once.Park, Policy: once.Policy{Lease: time.Second}}, 20 * day, false, false},
		{"Lookup", once.Operation[string]{}, 31 * day, true, false},
		{"Park", once.Operation[string]{OnUnknown: once.Park}, 31 * day, false, true},
		{"Resend", once.Operation[string]{OnUnknown: once.Resend}, 31 * day, false, true},
		{"a step that is forgotten first", once.Operation[string]{OnUnknown: once.Park, Policy: once.Policy{KeepOutcome: day, KeepKey: 2 * day}}, 5 * day,
			false, true},
	} {
		for _, parked := range []bool{true, false} {
			for _, happened := range []bool{true, false} {
				name := fmt.Sprintf("%s, parked: %v, happened: %v", c.name, parked, happened)
				if !happened && !c.decides && !c.asked {
					continue
				}
				t.Run(name, func(t *testing.T) {
					onQuietBench(t, func(t *testing.T, b *bench) {
						f := forgottenStep{bench: b, op: c.op, parks: parked}
						f.op.Name = "charge"
						if c.asked {
							f.op.Lookup = f.psp.find
						}
						f.run(t, c.after, c.decides, happened)
					})
				})
			}
		}
	}
}

// forgottenStep is a message whose step is made and whose rows fail.
type forgottenStep struct {
	*bench
	op     once.Operation[string]
	parks  bool // its rows fail for good; otherwise the process ends in them
	psp    provider
	mended atomic.Bool
}

func (f *forgottenStep) start(t *testing.T) (c *inbox.Consumer, stop func() error) {
	c = &inbox.Consumer{Name: "billing", Source: f.broker.Queue("orders"), Retry: retryAtOnce(3), Stats: new(inbox.Stats)}
	c.Handler = inbox.DoThenTx(f.store, &f.op, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
		f.psp.charge(key)
		return "charge of " + key.ID, nil
	}, func(ctx context.Context, tx mtx, m *broker.Message, charge string) error {
		switch {
		case charge != "charge of m0":
			t.Errorf("the row gets the charge %q", charge)
		case f.mended.Load():
			return f.effect(ctx, tx, m)
		case f.parks:
			return once.Permanent(errors.New("no such order"))
		}
		<-ctx.Done() // the process ends
		return ctx.Err()
	})
	return c, start(t, c)
}

func (f *forgottenStep) charges() int {
	f.psp.mu.Lock()
	defer f.psp.mu.Unlock()
	return f.psp.charges["m0"]
}

func (f *forgottenStep) replay(t *testing.T) {
	t.Helper()
	tally, err := (inbox.Admin{Store: f.store}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "the order is there now"})
	if err != nil || tally.Changed != 1 {
		t.Fatal(tally, err)
	}
}

func (f *forgottenStep) run(t *testing.T, after time.Duration, decides, happened bool) {
	c, stop := f.start(t)
	f.publish("orders", message("m0"))
	sleepUntil(time.Minute, func() bool { return f.charges() == 1 && (!f.parks || c.Stats.Parked.Load() == 1) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if _, err := f.store.Forget(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	charged := 1
	if !happened { // as far as can be found out
		f.psp.mu.Lock()
		clear(f.psp.charges)
		f.psp.mu.Unlock()
	}
	f.mended.Store(true)
	if f.parks {
		f.replay(t)
	} else {
		f.broker.Restart()
	}
	c, _ = f.start(t)
	settled := func() bool { return c.Stats.Handled.Load()+c.Stats.Parked.Load() > 0 }
	sleepUntil(time.Minute, settled)
	if !f.parks && after > 30*24*time.Hour && c.Stats.Parked.Load() == 1 { // as all old messages, which a person has to look at
		*c.Stats = inbox.Stats{}
		f.replay(t)
		sleepUntil(time.Minute, settled)
	}
	if decides {
		found := f.onTheShelf(store.Parked)
		if len(found) != 1 || !strings.Contains(found[0].Reason, "billing/charge") || !strings.Contains(found[0].Reason, "forgotten") {
			t.Fatalf("%d charges, on the shelf: %+v", f.charges(), f.onTheShelf())
		}
		rec, err := f.store.Get(t.Context(), f.op.Under(once.Key{Operation: "billing", ID: "m0"}).Key())
		if err != nil {
			t.Fatal(err)
		}
		if happened {
			out, _ := f.op.Outcome("charge of m0")
			err = once.MarkDone(t.Context(), f.store, rec, out, "seen at the provider")
		} else {
			err = once.MarkNotDone(t.Context(), f.store, rec, "not at the provider")
		}
		if err != nil {
			t.Fatal(err)
		}
		f.replay(t)
	}
	sleepUntil(time.Minute, func() bool { return f.count("m0") > 0 })
	if f.charges() != charged || f.count("m0") != 1 {
		t.Errorf("%d charges, %d rows; shelf: %+v", f.charges(), f.count("m0"), f.onTheShelf())
	}
}
