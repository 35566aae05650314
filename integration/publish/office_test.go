//go:build linux

package publish

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The kinds of brokers.
const (
	kafka  = "kafka"
	natsJS = "nats"
	rabbit = "rabbit"
)

// link is a broker with the place where messages come in, and the one where they go out, as it is said to a process.
// They are the topics, and the names of queues; a stream has the name without what follows the dot.
type link struct{ Kind, Address, In, Out string }

const group = "soak"

// source is where a process consumes.
func (l link) source(place string) (broker.Source, func(), error) {
	switch l.Kind {
	case kafka:
		return l.kafka().Topics(group, place), func() {}, nil
	case natsJS:
		js, err := l.nats()
		if err != nil {
			return nil, nil, err
		}
		return natsbroker.New(js, nil).Consumer(stream(place), group), js.Conn().Close, nil
	}
	return rabbitbroker.New(l.Address, nil).Queue(place), func() {}, nil
}

// publisher is where a process publishes.
func (l link) publisher() (broker.Publisher, func(), error) {
	switch l.Kind {
	case kafka:
		p := l.kafka().Publisher()
		return p, func() { _ = p.Close() }, nil
	case natsJS:
		js, err := l.nats()
		if err != nil {
			return nil, nil, err
		}
		p := natsbroker.New(js, &natsbroker.Options{DuplicateWindow: -1, ReplyWait: time.Second}).Publisher()
		return p, func() { _ = p.Close(); js.Conn().Close() }, nil
	}
	p := rabbitbroker.New(l.Address, nil).Publisher("")
	return p, func() { _ = p.Close() }, nil
}

// kafka is a client that notices soon that somebody has died.
func (l link) kafka() *kafkabroker.Broker {
	return kafkabroker.New(&kafkabroker.Options{Client: []kgo.Opt{
		kgo.SeedBrokers(strings.Split(l.Address, ",")...), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(1500 * time.Millisecond),
		kgo.RebalanceTimeout(3 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}})
}

func (l link) nats() (jetstream.JetStream, error) {
	nc, err := nats.Connect(l.Address, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

func stream(place string) string {
	name, _, _ := strings.Cut(place, ".")
	return name
}

// office is a broker that runs, seen from the test that runs it.
type office struct {
	link
	sender broker.Publisher
}

var places atomic.Int64

func openOffice(t testing.TB, kind string) *office {
	t.Helper()
	name := fmt.Sprintf("publish-%d-%d", time.Now().UnixNano(), places.Add(1))
	o := &office{link: link{Kind: kind, In: name + "-in.all", Out: name + "-out.all"}}
	switch kind {
	case kafka:
		o.openKafka(t)
	case natsJS:
		o.openNATS(t)
	default:
		o.openRabbit(t)
	}
	sender, end, err := o.publisher()
	must(t, err)
	t.Cleanup(end)
	o.sender = sender
	return o
}

func (o *office) openKafka(t testing.TB) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	must(t, err)
	t.Cleanup(cluster.Close)
	o.Address = strings.Join(cluster.ListenAddrs(), ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	must(t, err)
	defer client.Close()
	for _, name := range []string{o.In, o.Out} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 2, 1
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(t.Context(), client)
		must(t, err)
		must(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
	}
}

func (o *office) openNATS(t testing.TB) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: freePort(t), JetStream: true,
		StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	must(t, err)
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not take connections")
	}
	o.Address = s.ClientURL()
	js, err := o.nats()
	must(t, err)
	t.Cleanup(js.Conn().Close)
	for _, name := range []string{o.In, o.Out} {
		_, err = js.CreateStream(soon(t), jetstream.StreamConfig{Name: stream(name), Subjects: []string{name},
			Duplicates: 100 * time.Millisecond}) // the shortest, so that what comes twice gets through
		must(t, err)
		_, err = js.CreateConsumer(soon(t), stream(name), jetstream.ConsumerConfig{Durable: group,
			AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, AckWait: time.Second})
		must(t, err)
	}
}

// openRabbit makes queues on the server that was started for tests.
func (o *office) openRabbit(t testing.TB) {
	o.Address = testenv.RabbitMQ(t)
	conn, err := amqp.Dial(o.Address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.CheckRabbitMQ(t, conn.Properties)
	channel, err := conn.Channel()
	must(t, err)
	for _, queue := range []string{o.In, o.Out} {
		must(t, rabbitbroker.New(o.Address, nil).DeclareQueue(soon(t), queue, rabbitbroker.QueueOptions{}))
		t.Cleanup(func() {
			if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
				t.Error(err)
			}
		})
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
