//go:build go1.25

package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logtest"
)

// TestADeadBrokerIsLoggedByDefault: without a Logger, whoever runs a relay
// hears at once that nothing gets through, and then once in a minute at most.
func TestADeadBrokerIsLoggedByDefault(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		for _, m := range some(20, "m", "") {
			b.put(m)
		}
		r, logged := b.relay(), logtest.Default(b.T)
		r.Logger = nil
		stop := b.run(r)
		time.Sleep(time.Second)
		const message = "outbox: no message of a batch got through"
		if n := strings.Count(logged.String(), message); n != 1 {
			b.Errorf("%d lines after a second: %s", n, logged)
		}
		time.Sleep(time.Hour)
		stop()
		if n := strings.Count(logged.String(), message); n < 2 || n > 61 {
			b.Errorf("%d lines after an hour: %s", n, logged)
		}
	})
}
