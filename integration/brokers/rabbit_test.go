//go:build linux

package brokers_test

import (
	"testing"

	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
)

func TestRabbitConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t)
	for name, c := range map[string]struct {
		options rabbitbroker.Options
		queue   rabbitbroker.QueueOptions
	}{
		"quorum":            {},
		"classic":           {queue: rabbitbroker.QueueOptions{Classic: true}},
		"letters by quorum": {options: rabbitbroker.Options{QueueDeadLetters: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := brokertest.Harness{
				Fresh: func(tb testing.TB) brokertest.Place {
					return r.place(tb, c.options, c.queue).harnessPlace(!c.options.QueueDeadLetters)
				},
				Confirms: true, Restart: r.restart, Patience: proof.Patience,
			}
			if c.options.QueueDeadLetters || c.queue.Classic && proof.Soaking(t) == 0 {
				// With dead letters it is the quorum queue again.
				// TestRabbitLosesNothing restarts the server of a classic one.
				h.Restart = nil
			}
			for _, c := range brokertest.Cases(h) {
				t.Run(c.Name, func(t *testing.T) {
					if skipped, err := c.Check(t); err != nil {
						t.Errorf("%v\nthe rule: %s", err, c.Rule)
					} else if skipped != "" {
						t.Skip(skipped)
					}
				})
			}
		})
	}
}
