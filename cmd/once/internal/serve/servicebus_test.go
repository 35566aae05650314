package serve

import (
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/internal/fakeamqp"
)

func TestMessagesAreServedToServiceBus(t *testing.T) {
	bus, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	bus.CreateQueue("orders", fakeamqp.QueueOptions{})
	bus.CreateTopic("news", fakeamqp.QueueOptions{}, "billing")
	t.Setenv("SERVICEBUS", bus.ConnectionString())
	c := Config{ServiceBus: &ServiceBus{Connection: "${SERVICEBUS}"}}
	_, secrets := secret.With(t.Context())
	p, err := c.publisher(secrets)
	if err != nil {
		t.Fatal(err)
	}
	errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "news"}, {ID: "3", Topic: "returns"}})
	if len(errs) != 3 || errs[0] != nil || errs[1] != nil || errs[2] == nil {
		t.Fatal(errs)
	}
	if bus.Len("orders") != 1 || bus.Len("news/Subscriptions/billing") != 1 {
		t.Error("the messages are not there")
	}
	if text := secrets.Hide("the key is c2VjcmV0"); strings.Contains(text, "c2VjcmV0") {
		t.Errorf("%q shows the key", text)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
