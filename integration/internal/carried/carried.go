// Package carried tests that a store carries messages as a broker must.
package carried

import (
	"maps"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
)

// Store is a store that can carry messages.
type Store interface {
	once.Store
	store.Shelf
	store.Registry
}

// Run runs brokertest on stores that open returns, which are new and empty.
func Run(t *testing.T, open func(testing.TB) Store) {
	t.Helper()
	brokertest.Run(t, brokertest.Harness{
		Fresh:    func(tb testing.TB) brokertest.Place { return place(tb, open(tb)) },
		Confirms: true, Patience: proof.Patience, Quiet: 100 * time.Millisecond,
	})
}

// place returns the queue of a consumer on a store.
func place(tb testing.TB, s Store) brokertest.Place {
	const consumer, topic = "billing", "orders"
	b := storebroker.New(s, nil)
	_, err := s.Register(tb.Context(), store.Consumer{Name: consumer, Source: b.Queue(topic).Name()})
	proof.Must(tb, err)
	return brokertest.Place{
		Publisher: b.Publisher(),
		Source:    b.Queue(topic).(broker.Subscriber).For(consumer),
		Topic:     topic,
		DeadLetters: func(tb testing.TB) (dead []*broker.Message) {
			rows, err := s.Shelved(tb.Context(), store.ShelfQuery{Consumer: store.QueueOf(consumer), States: []store.ShelfState{store.Parked}})
			proof.Must(tb, err)
			for _, row := range rows {
				m := store.Queued(row)
				m.Header = maps.Clone(m.Header)
				m.Header[broker.ReasonHeader] = row.Reason
				dead = append(dead, &m)
			}
			return dead
		},
		Unroutable: "nowhere",
		OneByOne:   true,
	}
}
