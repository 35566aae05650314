package handover

import (
	"context"
	"slices"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/integration/internal/proof"
)

func message(id, key string) *broker.Message {
	return &broker.Message{ID: id, Topic: "orders", OrderingKey: key, Body: []byte("body of " + id)}
}

func open(t testing.TB, b *storebroker.Broker, consumer string) broker.Session {
	t.Helper()
	s, err := b.Queue("orders").(broker.Subscriber).For(consumer).Open(proof.Soon(t), 64)
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, s.Close(context.Background())) })
	return s
}

// receive receives n messages.
func receive(t testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	t.Helper()
	for len(ds) < n {
		more, err := s.Receive(proof.Soon(t), n-len(ds))
		proof.Must(t, err)
		ds = append(ds, more...)
	}
	return ds
}

func ids(ds []broker.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, d.Message.ID)
	}
	slices.Sort(all)
	return all
}
