//go:build linux

package brokers_test

import (
	"maps"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
)

func located(t *testing.T, s broker.Source) map[string]string {
	t.Helper()
	facts, err := s.(broker.Located).Location(t.Context())
	proof.Must(t, err)
	for fact, value := range facts {
		if value == "" {
			t.Errorf("%s tells no %s", s.Name(), fact)
		}
	}
	return facts
}

func TestAQueueTellsItsClusterAndItsVirtualHost(t *testing.T) {
	r := startRabbit(t)
	facts := located(t, rabbitbroker.New(r.DSN(), nil).Queue("orders"))
	if len(facts) != 2 || facts["vhost"] != "/" {
		t.Errorf("it is at %q, want the cluster and the virtual host", facts)
	}
}

func TestStreamsOfOneNameOnTwoServers(t *testing.T) {
	var at []map[string]string
	for range 2 {
		js := dialNATS(t, offices.StartNATS(t))
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
		proof.Must(t, err)
		b := natsbroker.New(js, nil)
		facts := located(t, b.Log("ORDERS", "billing"))
		if of := located(t, b.Consumer("ORDERS", "billing")); len(facts) == 0 || !maps.Equal(of, facts) {
			t.Errorf("the log is at %q, and the consumer at %q", facts, of)
		}
		at = append(at, facts)
	}
	if maps.Equal(at[0], at[1]) {
		t.Errorf("both are at %q", at[0])
	}
}

func TestTopicsOfOneNameInTwoClusters(t *testing.T) {
	a, b := fakeKafka(t, kfake.ClusterID("north")), fakeKafka(t, kfake.ClusterID("south"))
	for want, k := range map[string]*kafka{"north": a, "south": b} {
		got := located(t, k.broker(kafkabroker.Options{}).Topics("billing", "orders"))
		if !maps.Equal(got, map[string]string{"cluster": want}) {
			t.Errorf("it is at %q, want %s", got, want)
		}
	}
}
