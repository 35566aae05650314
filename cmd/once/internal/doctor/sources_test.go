package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/store"
)

// Each source that is made has the name that the registry has, so that none is asked
// about another queue. No broker needs to be reachable.
func TestSourcesAreMadeOfTheirNames(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	ctx, _ := secret.With(t.Context())
	s, err := OpenSources(ctx, []string{"redis://127.0.0.1:1", "kafka://127.0.0.1:1", "amqp://127.0.0.1:1/a", "amqp://127.0.0.1:1/b", "nats://127.0.0.1:1",
		"sqs://eu-north-1?endpoint=http://127.0.0.1:1", "pubsub://shop", "http://127.0.0.1:1", "servicebus://ns.example", "servicebus://k:v@other.example",
		"eventhubs://ns.example", "eventhubs://k:v@127.0.0.1:1?emulator=true"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if mute := strings.Join(s.Mute(), " "); mute != "pubsub://shop http://127.0.0.1:1" {
		t.Errorf("without a lag are %s", mute)
	}
	none := new(Sources)
	for _, c := range []struct {
		source string
		n      int
		err    string
	}{
		{"redis stream new orders group billing", 1, "redis://"},
		{"kafka topic a,b group billing and more", 1, "kafka://"},
		{"rabbitmq queue new orders", 2, "management plugin"},
		{"nats stream ORDERS consumer billing", 1, "nats://"},
		{"sqs queue orders.fifo", 1, "sqs://"},
		{"kafka topic b,a group billing", 0, "kafka://"}, // no adapter writes it so
		{"nats stream ORDERS log of billing", 1, "nats://"},
		{"pubsub subscription projects/shop/subscriptions/orders", 0, "does not count"},
		{"servicebus queue new/orders", 2, "servicebus://"},
		{"servicebus queue orders dead letters", 2, "servicebus://"},
		{"servicebus subscription new/orders/billing", 2, "servicebus://"},
		{"servicebus subscription orders/billing dead letters", 2, "servicebus://"},
		{"servicebus subscription orders", 0, "servicebus://"}, // no adapter writes it so
		{"eventhubs hub orders group $Default", 2, "eventhubs://"},
		{"redis stream orders", 0, "does not know such sources"},
		{"a queue of its own", 0, "does not know such sources"},
		{"", 0, "does not know such sources"},
	} {
		source := store.SourceText(c.source, map[string]string{"cluster": "north 1"})
		of, err := s.Of(source)
		if len(of) != c.n || (err == nil) != (c.n > 0) {
			t.Errorf("%s has %d sources, %v", c.source, len(of), err)
		}
		for _, made := range of {
			if made.Name() != c.source {
				t.Errorf("%s became %s", c.source, made.Name())
			}
		}
		if _, err := none.Of(source); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("without a broker, %s says %v", c.source, err)
		}
	}
}

func TestSourcesRefuseBadURLsWithoutTheirSecrets(t *testing.T) {
	const password = "hunter2-hunter2"
	for _, from := range []string{"kafka://ops:" + password + "@host:9092", "amqp://ops:" + password + "@host:x/v/w", "redis://ops:" + password + "@host:1?db=x",
		"nats://ops:" + password + "@host:4222?x=1", "sqs://ops:" + password + "@eu-north-1", "mqtt://ops:" + password + "@host", "amqp://ops:" + password + "@a,b"} {
		ctx, _ := secret.With(t.Context())
		s, err := OpenSources(ctx, []string{"amqp://127.0.0.1:1", from})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, ErrBroker) || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", from[:8], err)
		}
	}
}
