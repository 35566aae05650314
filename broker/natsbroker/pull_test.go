package natsbroker

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestAConsumerIsFitOnlyIfItLosesNothing(t *testing.T) {
	good := jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1}
	if what := unfit(&good); what != "" {
		t.Errorf("the one that DeclareConsumer makes %s", what)
	}
	for name, spoil := range map[string]func(*jetstream.ConsumerConfig){
		"push":       func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "s" },
		"no acks":    func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckNonePolicy },
		"a limit":    func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 },
		"a back-off": func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{1} },
		"an end":     func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = 1 },
		"no bodies":  func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"priorities": func(c *jetstream.ConsumerConfig) { c.PriorityGroups = []string{"a"} },
	} {
		bad := good
		spoil(&bad)
		if unfit(&bad) == "" {
			t.Errorf("one with %s is taken", name)
		}
	}
}
