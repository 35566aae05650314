//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
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
