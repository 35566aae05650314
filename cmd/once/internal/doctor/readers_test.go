package doctor

import (
	"slices"
	"testing"

	"github.com/effectively-once/once/store"
)

func TestReadersAreKnownByTheirSources(t *testing.T) {
	for _, test := range []struct {
		source, as string
		of         []string
	}{
		{"nats stream ORDERS consumer billing", "billing", []string{"ORDERS"}},
		{"nats stream ORDERS log of billing", "billing", []string{"ORDERS"}},
		{"kafka topic a,b group billing", "billing", []string{"a", "b"}},
		{"rabbitmq queue orders", "", []string{"orders"}},
		{"pubsub subscription projects/shop/subscriptions/orders", "", []string{"projects/shop/subscriptions/orders"}},
		{"eventhubs hub orders group $Default", "$Default", []string{"orders"}},
		{"sqs queue orders.fifo", "", []string{"orders.fifo"}},
		{"servicebus queue orders", "queue", []string{"orders"}},
		{"servicebus subscription orders/billing", "subscription", []string{"orders/billing"}},
		{"servicebus subscription orders/billing dead letters", "subscription", []string{"orders/billing"}},
		{"redis stream new orders group billing", "billing", []string{"new orders"}},
	} {
		for _, facts := range []map[string]string{nil, {"cluster": "north 1", "vhost": "/"}} {
			c := store.Consumer{Name: "billing", Source: store.SourceText(test.source, facts)}
			if r, ok := readerOf(c); !ok || r.as != test.as || !slices.Equal(r.of, test.of) {
				t.Errorf("%q is read as %q of %q, %v", c.Source, r.as, r.of, ok)
			}
		}
	}
}
