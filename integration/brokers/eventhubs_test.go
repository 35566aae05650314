//go:build linux

package brokers_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/store/memstore"
)

// hubs is an imitation of Event Hubs, in this process.
type hubs struct {
	*fakeamqp.Server
	names atomic.Int64
}

func startHubs(t *testing.T) *hubs {
	t.Helper()
	s, err := fakeamqp.Start()
	proof.Must(t, err)
	t.Cleanup(s.Close)
	return &hubs{Server: s}
}

// hubPlace is a hub, and how it is published to and read.
type hubPlace struct {
	hubs      *hubs
	hub       string
	members   once.Store
	broker    *eventhubsbroker.Broker
	publisher broker.Publisher
	source    broker.Source
}

// place creates a hub with n partitions. Leases are short, so that tests of dead
// sessions are.
func (h *hubs) place(tb testing.TB, n int) *hubPlace {
	tb.Helper()
	p := &hubPlace{hubs: h, hub: fmt.Sprintf("once-%d", h.names.Add(1)), members: memstore.New(nil)}
	h.CreateHub(p.hub, n)
	var err error
	p.broker, err = eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: h.ConnectionString(), Lease: 600 * time.Millisecond,
		HandOver: time.Second})
	proof.Must(tb, err)
	p.publisher = p.broker.Publisher()
	tb.Cleanup(func() { _ = p.publisher.Close() })
	p.source = p.broker.Log(p.hub, "$Default", p.members)
	return p
}

func TestEventHubsConformance(t *testing.T) {
	t.Parallel() // most of it is waiting
	h := startHubs(t)
	brokertest.Run(t, brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			p := h.place(tb, 3)
			return brokertest.Place{Publisher: p.publisher, Source: keepPlace(p.source), Topic: p.hub, Log: true, Unroutable: "no-such-hub"}
		},
		Restart:  func(tb testing.TB) { proof.Must(tb, h.Restart()) },
		Confirms: true, Patience: proof.Patience,
	})
}
