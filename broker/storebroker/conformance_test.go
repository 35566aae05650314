package storebroker_test

import (
	"maps"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func TestConformance(t *testing.T) {
	brokertest.Run(t, harness(func(testing.TB) carrier { return memstore.New(nil) }))
}

type carrier interface {
	once.Store
	store.Shelf
	store.Registry
}

func harness(open func(testing.TB) carrier) brokertest.Harness {
	return brokertest.Harness{
		Fresh: func(t testing.TB) brokertest.Place {
			s := open(t)
			b := storebroker.New(s, nil)
			register(t, s, "billing", "orders")
			return brokertest.Place{
				Publisher:   b.Publisher(),
				Source:      b.Queue("orders").(broker.Subscriber).For("billing"),
				Topic:       "orders",
				DeadLetters: func(t testing.TB) []*broker.Message { return deadLetters(t, s, "billing") },
				Unroutable:  "nowhere",
				OneByOne:    true,
			}
		},
		Confirms: true,
		Patience: 10 * time.Second,
		Quiet:    50 * time.Millisecond,
	}
}

func register(t testing.TB, s store.Registry, consumer, topic string) {
	t.Helper()
	_, err := s.Register(t.Context(), store.Consumer{Name: consumer, Source: "store topic " + topic})
	if err != nil {
		t.Fatal(err)
	}
}

func deadLetters(t testing.TB, s store.Shelf, consumer string) (ms []*broker.Message) {
	rows, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: store.QueueOf(consumer), States: []store.ShelfState{store.Parked}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		m := store.Queued(row)
		header := make(map[string]string)
		maps.Copy(header, m.Header)
		header[broker.ReasonHeader] = row.Reason
		m.Header = header
		ms = append(ms, &m)
	}
	return ms
}
