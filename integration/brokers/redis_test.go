//go:build linux

package brokers_test

import (
	"testing"

	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/integration/internal/proof"
)

func TestRedisConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	brokertest.Run(t, brokertest.Harness{
		Fresh:   func(tb testing.TB) brokertest.Place { return r.place(tb, redisbroker.Options{}).harnessPlace() },
		Restart: r.restart, Patience: proof.Patience,
	})
}
