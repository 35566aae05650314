// Package offices starts brokers for tests that restart them. Its connections
// survive a restart, and detect failures soon.
package offices

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

var names atomic.Int64

// Name returns a name that no other test and no other run uses.
func Name(of string) string { return fmt.Sprintf("%s-%d-%d", of, time.Now().UnixNano(), names.Add(1)) }

// FreePort is [server.FreePort].
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := server.FreePort()
	proof.Must(t, err)
	return port
}

// DialKafka returns the adapter for a cluster. The addresses are separated by
// commas.
func DialKafka(addresses string) *kafkabroker.Broker {
	return kafkabroker.New(&kafkabroker.Options{Client: []kgo.Opt{
		kgo.SeedBrokers(strings.Split(addresses, ",")...), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(1500 * time.Millisecond),
		kgo.RebalanceTimeout(3 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}})
}

// Kafka returns the address of the Kafka that was started for tests, or skips the
// test.
func Kafka(t testing.TB) string {
	t.Helper()
	address := testenv.Kafka(t)
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none
	resp, err := req.RequestWith(t.Context(), KafkaClient(t, address))
	proof.Must(t, err)
	var cluster string
	if resp.ClusterID != nil {
		cluster = *resp.ClusterID
	}
	testenv.CheckKafka(t, cluster)
	return address
}

// OwnKafka starts a Kafka of a test's own, of one node or three.
func OwnKafka(t testing.TB, nodes int) (addresses string, all []*server.Instance) {
	t.Helper()
	testenv.Kafka(t) // or it is not installed
	server.Need(t, server.Kafka)
	all, err := server.StartKafkas(t.Context(), nodes)
	proof.Must(t, err)
	var list []string
	for _, node := range all {
		list = append(list, node.Addr())
		t.Cleanup(func() { proof.Must(t, node.Stop()) })
	}
	return strings.Join(list, ","), all
}

// CreateTopic creates a Kafka topic, with as many replicas as the cluster gives by
// default.
func CreateTopic(t testing.TB, addresses, name string, partitions int32, settings ...string) {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, -1
	for _, setting := range settings {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		key, value, _ := strings.Cut(setting, "=")
		config.Name, config.Value = key, kmsg.StringPtr(value)
		topic.Configs = append(topic.Configs, config)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), KafkaClient(t, addresses))
	proof.Must(t, err)
	proof.Must(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
}

// RemoveTopic deletes a Kafka topic.
func RemoveTopic(t testing.TB, addresses, name string) {
	t.Helper()
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.Topics = []string{name}, append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), KafkaClient(t, addresses))
	proof.Must(t, err)
	proof.Must(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
}

// KafkaClient returns a client for what a test does without the adapter.
func KafkaClient(t testing.TB, addresses string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(addresses, ",")...)}, opts...)...)
	proof.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

// DialPubSub returns a client of a server that needs no credentials.
func DialPubSub(address string) (*pubsub.Client, error) {
	return pubsub.NewClient(context.Background(), "shop", option.WithEndpoint(address), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
}

// DialNATS connects, and reconnects for ever.
func DialNATS(addresses string, opts ...nats.Option) (jetstream.JetStream, error) {
	nc, err := nats.Connect(addresses, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true))...)
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

// NATSServer runs in this process, and syncs to disk before it confirms. It can
// be stopped, and started again with the same address and files.
type NATSServer struct {
	options natsserver.Options
	running *natsserver.Server
}

// StartNATS starts a server, which stops with the test.
func StartNATS(t testing.TB) *NATSServer {
	t.Helper()
	s := &NATSServer{options: natsserver.Options{Host: "127.0.0.1", Port: FreePort(t), JetStream: true, StoreDir: t.TempDir(),
		SyncAlways: true, MaxPayload: 8 << 20, NoLog: true, NoSigs: true}}
	s.Start(t)
	t.Cleanup(s.Stop)
	return s
}

// URL returns its address.
func (s *NATSServer) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.options.Port) }

// Start starts the server again.
func (s *NATSServer) Start(t testing.TB) {
	t.Helper()
	OnItsPort(t, s.start)
}

func (s *NATSServer) start() error {
	o := s.options // a copy, because the server changes it
	running, err := natsserver.NewServer(&o)
	if err != nil {
		return err
	}
	said := new(natsLog)
	running.SetLoggerV2(said, false, false, false)
	started := make(chan struct{})
	go func() { running.Start(); close(started) }()
	select {
	case <-started:
	case <-time.After(proof.Patience):
		return fmt.Errorf("the NATS server is still starting; it said: %s", said)
	}
	if !running.ReadyForConnections(time.Second) { // Start has only told the log why
		running.Shutdown()
		return fmt.Errorf("the NATS server takes no connections; it said: %s", said)
	}
	s.running = running
	return nil
}

// OnItsPort starts a server again on the port that it had. While the port is
// taken it tries again: a child that this process has just forked holds all its
// listeners until it executes its program, also those that are closed meanwhile.
func OnItsPort(t testing.TB, start func() error) {
	t.Helper()
	deadline := time.Now().Add(proof.Patience)
	err := start()
	for err != nil && strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) && time.Now().Before(deadline) {
		proof.Pause(10 * time.Millisecond)
		err = start()
	}
	proof.Must(t, err)
}

// natsLog keeps the warnings and errors that a server logs.
type natsLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *natsLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "; ")
}

func (l *natsLog) add(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, v...))
}

func (l *natsLog) Warnf(format string, v ...any)  { l.add(format, v...) }
func (l *natsLog) Errorf(format string, v ...any) { l.add(format, v...) }
func (l *natsLog) Fatalf(format string, v ...any) { l.add(format, v...) }
func (*natsLog) Noticef(string, ...any)           {}
func (*natsLog) Debugf(string, ...any)            {}
func (*natsLog) Tracef(string, ...any)            {}

// Stop shuts the server down.
func (s *NATSServer) Stop() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// Restart calls Stop and Start.
func (s *NATSServer) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Start(t)
}

// RabbitMQ returns the address of the test server, and a channel to it.
func RabbitMQ(t testing.TB) (dsn string, channel *amqp.Channel) {
	t.Helper()
	dsn = testenv.RabbitMQ(t)
	conn, err := amqp.Dial(dsn)
	proof.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.CheckRabbitMQ(t, conn.Properties)
	channel, err = conn.Channel()
	proof.Must(t, err)
	return dsn, channel
}

// OwnRabbitMQs starts a cluster of a test's own.
func OwnRabbitMQs(t testing.TB, nodes int) *server.RabbitMQCluster {
	t.Helper()
	testenv.RabbitMQs(t)
	server.Need(t, server.RabbitMQs)
	c, err := server.StartRabbitMQs(t.Context(), nodes)
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, c.Stop()) })
	return c
}

// DialRabbitMQs returns the adapter for a cluster. The addresses are separated by
// spaces. A connection is to the first node that takes it.
func DialRabbitMQs(addresses string, o rabbitbroker.Options) *rabbitbroker.Broker {
	all := strings.Fields(addresses)
	o.Config.Dial = func(network, _ string) (conn net.Conn, err error) {
		for _, address := range all {
			uri, wrong := amqp.ParseURI(address)
			if wrong != nil {
				return nil, wrong
			}
			conn, err = amqp.DefaultDial(5*time.Second)(network, net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)))
			if err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
	return rabbitbroker.New(all[0], &o)
}

// DeclareQueue declares a queue for one test.
func DeclareQueue(t testing.TB, b *rabbitbroker.Broker, channel *amqp.Channel, queue string,
	o rabbitbroker.QueueOptions) {

	t.Helper()
	proof.Must(t, b.DeclareQueue(proof.Soon(t), queue, o))
	t.Cleanup(func() {
		if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
			t.Error(err)
		}
	})
}
