//go:build linux

package server

import (
	"testing"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// needKafka skips a test unless the tool was asked for a Kafka: it is then
// installed.
func needKafka(t *testing.T) {
	t.Helper()
	testenv.Kafka(t)
	need(t, Kafka)
}

func TestAKafkaIsKnownByItsCluster(t *testing.T) {
	needKafka(t)
	i, other := started(t)(StartKafka(t.Context())), started(t)(StartKafka(t.Context()))
	if got, err := i.engine.askIdentity(t.Context(), other.DSN()); err != nil || got != other.Identity() || got == i.Identity() {
		t.Errorf("another cluster answers %q, %v", got, err)
	}
}

func TestTheNodesOfAClusterGetDifferentPorts(t *testing.T) {
	next := 0
	ports := differentPorts(func() (int, error) {
		next++
		return next / 2, nil
	})
	for want := range 4 {
		if got, err := ports(); err != nil || got != want {
			t.Errorf("a node got the port %d, %v, want %d", got, err, want)
		}
	}
}

// createTopic creates a topic with all its replicas, and returns the answer.
func createTopic(t *testing.T, addresses ...string) error {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "kept", 1, -1
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func TestKafkaKeepsItsTopicsIfItIsKilled(t *testing.T) {
	needKafka(t)
	i := started(t)(StartKafka(t.Context()))
	if err := createTopic(t, i.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := createTopic(t, i.Addr()); err != kerr.TopicAlreadyExists {
		t.Error("after a restart, the topic is created again:", err)
	}
}

func TestTwoOfThreeKafkasAnswer(t *testing.T) {
	needKafka(t)
	nodes, err := StartKafkas(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		started(t)(node, nil)
	}
	if err := createTopic(t, nodes[0].Addr()); err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := createTopic(t, nodes[1].Addr(), nodes[2].Addr()); err != kerr.TopicAlreadyExists {
		t.Error("the others do not know the topic:", err)
	}
	if err := nodes[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}
