package serve

import (
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/internal/fakeamqp"
)

func TestMessagesAreServedToEventHubs(t *testing.T) {
	hubs, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer hubs.Close()
	hubs.CreateHub("orders", 1)
	t.Setenv("EVENTHUBS", hubs.ConnectionString())
	c := Config{EventHubs: &EventHubs{Connection: "${EVENTHUBS}"}}
	_, secrets := secret.With(t.Context())
	p, err := c.publisher(secrets)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "returns"}})
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil {
		t.Fatal(errs)
	}
	if got := hubs.HubEvents("orders", 0); len(got) != 1 || got[0] != "1" {
		t.Error(got)
	}
	if text := secrets.Hide("the key is c2VjcmV0"); strings.Contains(text, "c2VjcmV0") {
		t.Errorf("%q shows the key", text)
	}
}
