//go:build linux

package brokers_test

import (
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/integration/internal/proof"
)

func TestPubSubConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	for name, c := range map[string]struct {
		options pubsubbroker.Options
		change  func(*pubsubpb.Subscription)
	}{
		"ordered": {},
		"exactly once": {pubsubbroker.Options{Unordered: true}, func(settings *pubsubpb.Subscription) {
			unordered(settings)
			exactlyOnce(settings)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startPubSub(t)
			brokertest.Run(t, brokertest.Harness{
				Fresh:   func(tb testing.TB) brokertest.Place { return r.place(tb, c.options, c.change).harnessPlace() },
				Restart: r.restart, Confirms: true, Patience: proof.Patience,
			})
		})
	}
}

// pstest gives out messages in the order of a Go map, or one of an ordering key at
// a time, and forgets everything when it is restarted.
var notOnPstest = map[string]bool{
	"order/batch": true, "order/calls": true, "order/slowly": true, "ack/prefix": true,
}

func TestPubSubConformanceOnPstest(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startPstest(t)
	for _, c := range brokertest.Cases(brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			return r.place(tb, pubsubbroker.Options{Unordered: true}, nil).harnessPlace()
		},
		Confirms: true, Patience: proof.Patience,
	}) {
		if notOnPstest[c.Name] {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			skipped, err := c.Check(t)
			switch {
			case err != nil:
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			case skipped != "":
				t.Skip(skipped)
			}
		})
	}
}
