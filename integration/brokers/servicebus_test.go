package brokers_test

import (
	"slices"
	"testing"

	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
)

func TestServiceBusSessionsConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	serviceBusConformance(t, fakeamqp.QueueOptions{Sessions: true}, "each of so many messages would have a session of its own", "publish/batch", "publish/concurrent")
}

// A queue without sessions keeps no order, because the client gives back what
// comes between two receives.
func TestServiceBusQueueConformance(t *testing.T) {
	t.Parallel()
	serviceBusConformance(t, fakeamqp.QueueOptions{}, "a queue without sessions keeps no order", "order/batch", "order/calls", "restart/order")
}

func serviceBusConformance(t *testing.T, o fakeamqp.QueueOptions, because string, cannot ...string) {
	t.Helper()
	f := startServiceBus(t)
	h := brokertest.Harness{
		Fresh:    func(tb testing.TB) brokertest.Place { return f.place(tb, o).harnessPlace() },
		Restart:  func(tb testing.TB) { proof.Must(tb, f.Restart()) },
		Confirms: true, Patience: proof.Patience,
	}
	for _, c := range brokertest.Cases(h) {
		t.Run(c.Name, func(t *testing.T) {
			if slices.Contains(cannot, c.Name) {
				t.Skip(because)
			}
			switch skipped, err := c.Check(t); {
			case err != nil:
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			case skipped != "":
				t.Skip(skipped)
			}
		})
	}
}
