//go:build linux

package consume

import (
	"context"
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
	"github.com/effectively-once/once/integration/wire"
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
	natsLg = "nats log" // the same, read as a log
	rabbit = "rabbit"
)

// post is a broker and a place in it, as it is said to a process.
type post struct{ Kind, Address, Place string }

const group = "soak"

// source is where a process consumes.
func (p post) source() (broker.Source, func(), error) {
	switch p.Kind {
	case kafka:
		return p.kafka().Topics(group, p.Place), func() {}, nil
	case natsJS, natsLg:
		js, err := p.nats()
		if err != nil {
			return nil, nil, err
		}
		b := natsbroker.New(js, nil)
		if p.Kind == natsLg {
			return b.Log(p.Place, group), js.Conn().Close, nil
		}
		return b.Consumer(p.Place, group), js.Conn().Close, nil
	}
	return p.rabbit().Queue(p.Place), func() {}, nil
}

// kafka is a client that notices soon that somebody has died.
func (p post) kafka() *kafkabroker.Broker {
	return kafkabroker.New(&kafkabroker.Options{Client: []kgo.Opt{
		kgo.SeedBrokers(strings.Split(p.Address, ",")...), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(1500 * time.Millisecond),
		kgo.RebalanceTimeout(3 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}})
}

func (p post) nats() (jetstream.JetStream, error) {
	nc, err := nats.Connect(p.Address, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

func (p post) rabbit() *rabbitbroker.Broker {
	dead := &rabbitbroker.DeadLetter{RoutingKey: p.Place + ".dead"}
	return rabbitbroker.New(p.Address, &rabbitbroker.Options{DeadLetter: dead})
}

// office is a broker that runs, seen from the test that runs it.
type office struct {
	post
	publisher broker.Publisher
	topic     string
	disturb   func(testing.TB) // restarts it, or cuts its connections
	idle      func(testing.TB) bool
}

var places atomic.Int64

func newPlace() string { return fmt.Sprintf("consume-%d-%d", time.Now().UnixNano(), places.Add(1)) }

// openOffice starts a broker with a place in it. In order, it gives the messages of a key to one process at a time.
func openOffice(t testing.TB, kind string, inOrder bool) *office {
	t.Helper()
	switch kind {
	case kafka:
		return openKafka(t, 3)
	case natsJS:
		return openNATS(t)
	case natsLg:
		o := openNATS(t)
		o.Kind = natsLg
		o.idle = func(testing.TB) bool { return true } // the server does not know
		return o
	}
	return openRabbit(t, inOrder)
}

func openKafka(t testing.TB, partitions int32) *office {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(freePort(t)), kfake.DataDir(t.TempDir()), kfake.SyncWrites(),
		kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}
	running, err := kfake.NewCluster(opts...)
	must(t, err)
	t.Cleanup(func() { running.Close() })
	o := &office{post: post{kafka, strings.Join(running.ListenAddrs(), ","), newPlace()}}
	o.topic = o.Place
	o.disturb = func(t testing.TB) {
		running.Close()
		again, err := kfake.NewCluster(opts...)
		must(t, err)
		running = again
	}
	o.createTopic(t, partitions)
	o.publisher = o.kafka().Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(testing.TB) bool { return true } // what is not committed lies behind a position, or has its key
	return o
}

func (o *office) createTopic(t testing.TB, partitions int32) {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = o.topic, partitions, 1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	client := o.kafkaClient(t)
	resp, err := req.RequestWith(t.Context(), client)
	must(t, err)
	must(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
}

func (o *office) removeTopic(t testing.TB) {
	t.Helper()
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = kmsg.StringPtr(o.topic)
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.Topics = []string{o.topic}, append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), o.kafkaClient(t))
	must(t, err)
	must(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
}

func (o *office) kafkaClient(t testing.TB) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.Address, ",")...))
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// openNATS starts a server that syncs what it confirms.
func openNATS(t testing.TB) *office {
	t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: freePort(t), JetStream: true, StoreDir: t.TempDir(), SyncAlways: true,
		NoLog: true, NoSigs: true}
	start := func(t testing.TB) *server.Server {
		o := *opts
		s, err := server.NewServer(&o)
		must(t, err)
		go s.Start()
		if !s.ReadyForConnections(30 * time.Second) {
			t.Fatal("the server does not take connections")
		}
		return s
	}
	stop := func(s *server.Server) { s.Shutdown(); s.WaitForShutdown() }
	running := start(t)
	t.Cleanup(func() { stop(running) })
	o := &office{post: post{natsJS, fmt.Sprintf("nats://127.0.0.1:%d", opts.Port), newPlace()}}
	o.topic = o.Place + ".orders"
	o.disturb = func(t testing.TB) {
		stop(running)
		running = start(t)
	}
	js, err := o.nats()
	must(t, err)
	t.Cleanup(js.Conn().Close)
	ctx := soon(t)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: o.Place, Subjects: []string{o.Place + ".>"},
		Duplicates: 100 * time.Millisecond}) // the shortest, so that what comes twice gets through
	must(t, err)
	c := jetstream.ConsumerConfig{Durable: group, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
		AckWait: time.Second}
	consumer, err := js.CreateConsumer(ctx, o.Place, c)
	must(t, err)
	o.publisher = natsbroker.New(js, &natsbroker.Options{DuplicateWindow: -1, ReplyWait: time.Second}).Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(t testing.TB) bool {
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		info, err := consumer.Info(short)
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0
	}
	return o
}

// openRabbit makes a queue on the server that was started for tests. A server that is shared is not restarted: its
// connections are cut.
func openRabbit(t testing.TB, inOrder bool) *office {
	t.Helper()
	dsn := testenv.RabbitMQ(t)
	conn, err := amqp.Dial(dsn)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.CheckRabbitMQ(t, conn.Properties)
	channel, err := conn.Channel()
	must(t, err)
	proxy, through := wire.Between(t, dsn, wire.Raw)
	o := &office{post: post{rabbit, through, newPlace()}}
	o.topic = o.Place
	o.disturb = func(testing.TB) { proxy.Cut() }
	b := o.rabbit()
	for queue, options := range map[string]rabbitbroker.QueueOptions{
		o.Place: {SingleActive: inOrder}, o.Place + ".dead": {},
	} {
		must(t, b.DeclareQueue(soon(t), queue, options))
		t.Cleanup(func() {
			if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
				t.Error(err)
			}
		})
	}
	o.publisher = b.Publisher("")
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(t testing.TB) bool {
		left, err := channel.QueueDeclarePassive(o.Place, true, false, false, false, nil)
		return err == nil && left.Messages == 0
	}
	return o
}

// publish publishes until everything is confirmed, so what was confirmed in silence comes twice.
func (o *office) publish(t testing.TB, ms []*broker.Message) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for len(ms) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		errs := o.publisher.Publish(ctx, ms)
		cancel()
		var left []*broker.Message
		for i, err := range errs {
			if err != nil {
				left = append(left, ms[i])
			}
		}
		if len(left) > 0 && time.Now().After(deadline) {
			t.Fatalf("%d messages could not be published: %v", len(left), errs)
		}
		ms = left
		if len(ms) > 0 {
			pause(50 * time.Millisecond)
		}
	}
}

// pause is between two attempts at something that others have to make possible.
func pause(d time.Duration) { <-time.After(d) }

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
