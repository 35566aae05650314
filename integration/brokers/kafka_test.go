package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// kafka is a cluster for tests: one in this process, which can be made to fail,
// or a real one.
type kafka struct {
	tb    testing.TB
	fake  *kfake.Cluster // nil: it is a real one
	seeds []string
}

// eachKafka runs a test against a cluster in this process, and against a real
// one.
func eachKafka(t *testing.T, test func(t *testing.T, k *kafka)) {
	t.Run("kfake", func(t *testing.T) { test(t, fakeKafka(t)) })
	t.Run("kafka", func(t *testing.T) { test(t, &kafka{tb: t, seeds: []string{offices.Kafka(t)}}) })
}

// impatient are settings of a cluster with short timeouts for rebalances and
// sessions.
var impatient = map[string]string{"group.initial.rebalance.delay.ms": "0"}

func fakeKafka(tb testing.TB, opts ...kfake.Opt) *kafka {
	tb.Helper()
	opts = append([]kfake.Opt{kfake.NumBrokers(3), kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(impatient)}, opts...)
	fake, err := kfake.NewCluster(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(fake.Close)
	return &kafka{tb: tb, fake: fake, seeds: fake.ListenAddrs()}
}

func (k *kafka) addresses() string { return strings.Join(k.seeds, ",") }

// name returns a unique name.
func (k *kafka) name(of string) string { return offices.Name(of) }

// client returns a client of the cluster that does not use the adapter.
func (k *kafka) client(opts ...kgo.Opt) *kgo.Client {
	k.tb.Helper()
	return offices.KafkaClient(k.tb, k.addresses(), opts...)
}

// broker returns a Broker with short timeouts.
func (k *kafka) broker(o kafkabroker.Options, opts ...kgo.Opt) *kafkabroker.Broker {
	o.Client = append([]kgo.Opt{
		kgo.SeedBrokers(k.seeds...), kgo.FetchMaxWait(100 * time.Millisecond), kgo.ProducerBatchMaxBytes(4 << 20),
		kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(10 * time.Second),
		kgo.RebalanceTimeout(10 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}, append(o.Client, opts...)...)
	return kafkabroker.New(&o)
}

// topic creates a topic.
func (k *kafka) topic(partitions int32, settings ...string) string {
	k.tb.Helper()
	name := k.name("topic")
	k.create(name, partitions, settings...)
	return name
}

func (k *kafka) create(name string, partitions int32, settings ...string) {
	k.tb.Helper()
	offices.CreateTopic(k.tb, k.addresses(), name, partitions, append(settings, "max.message.bytes=8388608")...)
}

// read returns the messages of a topic with one partition, through a group of
// its own.
func (k *kafka) read(tb testing.TB, b *kafkabroker.Broker, topic string) (ms []*broker.Message) {
	tb.Helper()
	n := k.end(tb, topic)
	s := kafkaOpen(tb, b.Topics(k.name("reader"), topic), 1000)
	for _, d := range receive(tb, s, int(n)) {
		ms = append(ms, d.Message)
	}
	return ms
}

// end returns the next offset of partition 0 of a topic.
func (k *kafka) end(tb testing.TB, topic string) int64 {
	tb.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Timestamp = -1
	at := kmsg.NewListOffsetsRequestTopic()
	at.Topic, at.Partitions = topic, append(at.Partitions, part)
	req.ReplicaID, req.Topics = -1, append(req.Topics, at)
	resp, err := req.RequestWith(tb.Context(), k.client())
	if err != nil {
		tb.Fatal(err)
	}
	return resp.Topics[0].Partitions[0].Offset
}

// committed returns the offset and the metadata that a group has committed for
// a partition; -1 if there is none.
func (k *kafka) committed(tb testing.TB, group, topic string, partition int32) (int64, string) {
	tb.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	at := kmsg.NewOffsetFetchRequestTopic()
	at.Topic, at.Partitions = topic, []int32{partition}
	req.Topics = append(req.Topics, at)
	client := k.client(kgo.MaxVersions(kversion.V2_8_0()))
	resp, err := req.RequestWith(tb.Context(), client)
	if err != nil {
		tb.Fatal(err)
	}
	p := resp.Topics[0].Partitions[0]
	if p.Metadata == nil {
		return p.Offset, ""
	}
	return p.Offset, *p.Metadata
}

// line is a connection to the cluster that can be cut, as when a process is
// killed.
type line struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		conn.Close()
		return nil, net.ErrClosed
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *line) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		conn.Close()
	}
}

// kafkaStand is a topic with a group and a publisher.
type kafkaStand struct {
	topic, group string
	b            *kafkabroker.Broker
	p            broker.Publisher
}

func (k *kafka) stand(partitions int32, o kafkabroker.Options, opts ...kgo.Opt) *kafkaStand {
	k.tb.Helper()
	w := &kafkaStand{topic: k.topic(partitions), group: k.name("group"), b: k.broker(o, opts...)}
	w.p = w.b.Publisher()
	k.tb.Cleanup(func() { _ = w.p.Close() })
	return w
}

// open opens a session of the group.
func (w *kafkaStand) open(tb testing.TB, window int) broker.Session {
	tb.Helper()
	return kafkaOpen(tb, w.b.Topics(w.group, w.topic), window)
}

func (w *kafkaStand) publish(tb testing.TB, ms ...*broker.Message) {
	tb.Helper()
	publish(tb, w.p, ms...)
}

// fill publishes messages of one partition.
func (w *kafkaStand) fill(tb testing.TB, n int) {
	tb.Helper()
	w.publish(tb, kafkaMessages(w.topic, n)...)
}

func kafkaOpen(tb testing.TB, source broker.Source, window int) broker.Session {
	tb.Helper()
	s, err := source.Open(tb.Context(), window)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { kafkaClose(tb, s) })
	return s
}

func kafkaClose(tb testing.TB, s broker.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		tb.Logf("Close: %v", err)
	}
}

// kafkaMessages returns n messages with the same ordering key, which are in one
// partition.
func kafkaMessages(topic string, n int) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprintf("m%d", i), Topic: topic, OrderingKey: "one", Body: []byte("x")})
	}
	return ms
}

// kafkaSpread returns n messages with different ordering keys.
func kafkaSpread(topic string, n int) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprint("m", i), Topic: topic, OrderingKey: fmt.Sprint("k", i)})
	}
	return ms
}

func kafkaAck(tb testing.TB, s broker.Session, ds ...broker.Delivery) {
	tb.Helper()
	if err := s.Ack(tb.Context(), ds); err != nil {
		tb.Fatalf("Ack: %v", err)
	}
}

// kafkaQuiet checks that no message comes for some time.
func kafkaQuiet(tb testing.TB, s broker.Session) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 300*time.Millisecond)
	defer cancel()
	if ds, err := s.Receive(ctx, 100); len(ds) > 0 || ctx.Err() == nil {
		tb.Fatalf("Receive returned %v and %v, but there is nothing more", ids(ds), err)
	}
}

func ids(ds []broker.Delivery) (ids []string) {
	for _, d := range ds {
		ids = append(ids, d.Message.ID)
	}
	return ids
}

func TestKafkaKeepsTheContract(t *testing.T) {
	eachKafka(t, func(t *testing.T, k *kafka) {
		brokertest.Run(t, brokertest.Harness{Confirms: true, Fresh: k.place, Patience: proof.Patience})
	})
}

// TestKafkaSurvivesARestart runs the cases that stop the cluster and start it
// again with its files and ports.
func TestKafkaSurvivesARestart(t *testing.T) {
	t.Run("kfake", func(t *testing.T) {
		ports := []int{offices.FreePort(t), offices.FreePort(t), offices.FreePort(t)}
		opts := []kfake.Opt{kfake.Ports(ports...), kfake.DataDir(t.TempDir()), kfake.SyncWrites()}
		k := fakeKafka(t, opts...)
		k.survivesRestarts(t, func(tb testing.TB) {
			k.fake.Close()
			offices.OnItsPort(tb, func() error {
				again, err := kfake.NewCluster(append(opts, kfake.BrokerConfigs(impatient))...)
				if err == nil {
					k.fake = again
					t.Cleanup(again.Close)
				}
				return err
			})
		})
	})
	t.Run("kafka", func(t *testing.T) {
		address, nodes := offices.OwnKafka(t, 1)
		k := &kafka{tb: t, seeds: []string{address}}
		k.survivesRestarts(t, func(tb testing.TB) {
			if err := errors.Join(nodes[0].Kill(), nodes[0].Restart(tb.Context())); err != nil {
				tb.Fatal(err)
			}
		})
	})
}

// survivesRestarts runs the cases that restart the cluster.
func (k *kafka) survivesRestarts(t *testing.T, restart func(testing.TB)) {
	cases := 0
	for _, c := range brokertest.Cases(brokertest.Harness{Confirms: true, Fresh: k.place, Restart: restart, Patience: proof.Patience}) {
		if !strings.HasPrefix(c.Name, "restart/") {
			continue
		}
		cases++
		t.Run(c.Name, func(t *testing.T) {
			if _, err := c.Check(t); err != nil {
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			}
		})
	}
	if cases == 0 {
		t.Error("no case restarts the cluster")
	}
}

func (k *kafka) place(tb testing.TB) brokertest.Place {
	topic, dead := k.topic(3), k.topic(1)
	b := k.broker(kafkabroker.Options{DeadLetter: dead})
	publisher := b.Publisher()
	tb.Cleanup(func() { publisher.Close() })
	return brokertest.Place{
		Publisher: publisher, Source: b.Topics(k.name("group"), topic), Topic: topic, Log: true,
		Unroutable:  k.name("nowhere"),
		DeadLetters: func(tb testing.TB) []*broker.Message { return k.read(tb, b, dead) },
	}
}
