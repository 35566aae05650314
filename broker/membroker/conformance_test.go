package membroker_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/membroker"
)

// brokers are those that a harness has created, for its Restart.
type brokers struct{ last *membroker.Broker }

func (bs *brokers) restart(testing.TB) { bs.last.Restart() }

func (bs *brokers) queue(testing.TB) brokertest.Place {
	b := membroker.New(nil)
	bs.last = b
	return brokertest.Place{
		Publisher:   b.Publisher(),
		Source:      b.Queue("orders"),
		Topic:       "orders",
		DeadLetters: func(testing.TB) []*broker.Message { return b.Messages("orders.dead") },
		Unroutable:  "nowhere",
	}
}

func (bs *brokers) log(testing.TB) brokertest.Place {
	b := membroker.New(nil)
	bs.last = b
	return brokertest.Place{
		Publisher:  b.Publisher(),
		Source:     b.Log("orders", "billing", 4),
		Topic:      "orders",
		Unroutable: "nowhere",
		Log:        true,
	}
}

// harness returns a harness with short waits, because everything is in this
// process.
func (bs *brokers) harness(fresh func(testing.TB) brokertest.Place) brokertest.Harness {
	return brokertest.Harness{
		Fresh:    fresh,
		Restart:  bs.restart,
		Confirms: true,
		Patience: 10 * time.Second,
		Quiet:    20 * time.Millisecond,
	}
}

func TestConformanceOfQueues(t *testing.T) {
	bs := new(brokers)
	brokertest.Run(t, bs.harness(bs.queue))
}

func TestConformanceOfLogs(t *testing.T) {
	bs := new(brokers)
	brokertest.Run(t, bs.harness(bs.log))
}
