//go:build linux

package consume

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/pubsubfake"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
)

// The kinds of brokers.
const (
	kafka   = "kafka"
	natsJS  = "nats"
	natsLg  = "nats log" // the same, read as a log
	rabbit  = "rabbit"
	rabbitC = "rabbit cluster"
	redisS  = "redis"
	redisA  = "redis with one active session" // the same, in order
	sqsStd  = "sqs"
	sqsFIF  = "sqs fifo"
	pubsub  = "pubsub"
	hubs    = "event hubs"
	azure   = "service bus"
	azureS  = "service bus with sessions" // the same, in order
)

// post is a broker and a place in it, as a plan has it.
type post struct{ Kind, Address, Place string }

const group = "soak"

// source returns the source of a process. Members of a group find each other in
// its store, if the broker does not help them.
func (p post) source(members once.Store) (broker.Source, func(), error) {
	switch p.Kind {
	case kafka:
		return offices.DialKafka(p.Address).Topics(p.Place, p.Place), func() {}, nil // a group of its own: the cluster may be shared
	case natsJS, natsLg:
		js, err := offices.DialNATS(p.Address)
		if err != nil {
			return nil, nil, err
		}
		b := natsbroker.New(js, nil)
		if p.Kind == natsLg {
			return b.Log(p.Place, group), js.Conn().Close, nil
		}
		return b.Consumer(p.Place, group), js.Conn().Close, nil
	case sqsStd, sqsFIF:
		return p.sqs().Queue(p.Place), func() {}, nil
	case redisS, redisA:
		client, err := p.redis()
		if err != nil {
			return nil, nil, err
		}
		b := redisbroker.New(client, &redisbroker.Options{ClaimAfter: time.Second, SingleActive: p.Kind == redisA})
		return b.Group(p.Place, group), func() { _ = client.Close() }, nil
	case pubsub:
		client, err := offices.DialPubSub(p.Address)
		if err != nil {
			return nil, nil, err
		}
		b := pubsubbroker.New(client, &pubsubbroker.Options{DeadLetter: p.Place + ".dead"})
		return b.Subscription(p.Place), func() { _ = client.Close() }, nil
	case hubs:
		b, err := offices.DialHubs(p.Address)
		if err != nil {
			return nil, nil, err
		}
		return b.Log(p.Place, group, members), func() {}, nil
	case azure, azureS:
		b, end, err := offices.DialServiceBus(p.Address, p.Kind == azureS)
		if err != nil {
			return nil, nil, err
		}
		return b.Queue(p.Place), end, nil
	}
	return p.rabbit().Queue(p.Place), func() {}, nil
}

func (p post) rabbit() *rabbitbroker.Broker {
	o := rabbitbroker.Options{DeadLetter: &rabbitbroker.DeadLetter{RoutingKey: p.Place + ".dead"}}
	if p.Kind == rabbitC {
		return offices.DialRabbitMQs(p.Address, o)
	}
	return rabbitbroker.New(p.Address, &o)
}

func (p post) sqs() *sqsbroker.Broker {
	return sqsbroker.New(offices.DialSQS(p.Address), &sqsbroker.Options{Visibility: 2 * time.Second, Unordered: true})
}

func (p post) redis() (*redis.Client, error) {
	o, err := redis.ParseURL(p.Address)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

// office is a running broker, as the test that runs it sees it.
type office struct {
	post
	publisher broker.Publisher
	topic     string
	disturb   func(testing.TB) // restarts it, or cuts its connections
	idle      func(testing.TB) bool
}

// openOffice starts a broker with a place in it. If inOrder is set, it gives
// the messages of a key to one process at a time.
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
	case redisS, redisA:
		return openRedis(t, kind)
	case sqsStd, sqsFIF:
		return openSQS(t, kind)
	case pubsub:
		return openPubSub(t)
	case hubs:
		return openHubs(t, 3)
	case azure, azureS:
		return openServiceBus(t, kind)
	}
	return openRabbit(t, inOrder)
}

// openKafka starts a cluster in this process or, under "make test-kafka", a real
// one of three nodes.
func openKafka(t testing.TB, partitions int32) *office {
	t.Helper()
	if os.Getenv(testenv.KafkaVar) != "" {
		return openKafkas(t, partitions)
	}
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(offices.FreePort(t)), kfake.DataDir(t.TempDir()),
		kfake.SyncWrites(), kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}
	running, err := kfake.NewCluster(opts...)
	must(t, err)
	t.Cleanup(func() { running.Close() })
	o := officeOf(t, strings.Join(running.ListenAddrs(), ","), partitions)
	o.disturb = func(t testing.TB) {
		running.Close()
		offices.OnItsPort(t, func() error {
			again, err := kfake.NewCluster(opts...)
			if err == nil {
				running = again
			}
			return err
		})
	}
	return o
}

// openKafkas starts a cluster of which one node after the other is killed.
func openKafkas(t testing.TB, partitions int32) *office {
	t.Helper()
	addresses, nodes := offices.OwnKafka(t, 3)
	o := officeOf(t, addresses, partitions)
	o.disturb = func(t testing.TB) {
		node := nodes[0]
		nodes = append(nodes[1:], node)
		must(t, node.Kill())
		must(t, node.Restart(context.WithoutCancel(t.Context())))
	}
	return o
}

func officeOf(t testing.TB, addresses string, partitions int32) *office {
	t.Helper()
	o := &office{post: post{kafka, addresses, offices.Name("consume")}}
	o.topic = o.Place
	offices.CreateTopic(t, o.Address, o.topic, partitions)
	o.publisher = offices.DialKafka(o.Address).Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(testing.TB) bool { return true } // what is not committed lies behind a position, or has its key
	return o
}

func openNATS(t testing.TB) *office {
	t.Helper()
	s := offices.StartNATS(t)
	o := &office{post: post{natsJS, s.URL(), offices.Name("consume")}, disturb: s.Restart}
	o.topic = o.Place + ".orders"
	js, err := offices.DialNATS(o.Address)
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

// openRedis starts a server, which has each write on disk before it answers.
func openRedis(t testing.TB, kind string) *office {
	server.Need(t, server.Redis)
	running, err := server.StartRedis(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, running.Stop()) })
	o := &office{post: post{kind, running.DSN(), offices.Name("consume")}}
	o.topic = o.Place
	o.disturb = func(t testing.TB) {
		must(t, running.Kill())
		must(t, running.Restart(context.WithoutCancel(t.Context())))
	}
	client, err := o.redis()
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	b := redisbroker.New(client, nil)
	must(t, b.DeclareGroup(soon(t), o.Place, group))
	o.publisher = b.Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(t testing.TB) bool {
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		lag, err := b.Group(o.Place, group).(broker.Lagger).Lag(short)
		return err == nil && lag.Messages == 0
	}
	return o
}

// openSQS starts an imitation, which keeps its messages when it is restarted.
func openSQS(t testing.TB, kind string) *office {
	running := offices.StartSQS(t)
	o := &office{post: post{kind, running.URL(), offices.Name("consume")}, disturb: running.Restart}
	var attributes map[string]string
	if kind == sqsFIF {
		o.Place += ".fifo"
		attributes = map[string]string{"FifoQueue": "true"}
	}
	o.topic = o.Place
	offices.CreateQueue(t, offices.DialSQS(o.Address), o.Place, attributes)
	o.publisher = o.sqs().Publisher()
	o.idle = func(testing.TB) bool { return running.Service.Count(o.Place) == 0 }
	return o
}

// openPubSub starts an imitation in this process, whose messages come again a
// second after their process has died.
func openPubSub(t testing.TB) *office {
	running, err := pubsubfake.Start()
	must(t, err)
	t.Cleanup(func() { running.Stop() })
	o := &office{post: post{pubsub, running.Addr(), offices.Name("consume")}}
	o.topic = o.Place
	o.disturb = func(t testing.TB) {
		running.Stop()
		offices.OnItsPort(t, running.Listen)
	}
	client, err := offices.DialPubSub(o.Address)
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	b := pubsubbroker.New(client, nil)
	for _, name := range []string{o.Place, o.Place + ".dead"} {
		must(t, b.DeclareSubscription(soon(t), name, name, &pubsubbroker.SubscriptionOptions{AckDeadline: time.Second}))
	}
	o.publisher = b.Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(testing.TB) bool { return running.Unsettled("projects/shop/subscriptions/"+o.Place) == 0 }
	return o
}

// openHubs creates a hub in an imitation of the service, which runs here.
func openHubs(t testing.TB, partitions int) *office {
	running := offices.StartHubs(t)
	o := &office{post: post{hubs, running.ConnectionString(), offices.Name("consume")}}
	o.topic = o.Place
	running.CreateHub(o.Place, partitions, group)
	o.disturb = func(t testing.TB) { must(t, running.Restart()) }
	b, err := offices.DialHubs(o.Address)
	must(t, err)
	o.publisher = b.Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(testing.TB) bool { return true } // the service does not know
	return o
}

// openServiceBus starts an imitation of the service, which keeps its messages when
// it restarts.
func openServiceBus(t testing.TB, kind string) *office {
	o := &office{post: post{kind, "", offices.Name("consume")}}
	s := offices.StartServiceBus(t, kind == azureS, o.Place)
	o.Address, o.topic = s.ConnectionString(), o.Place
	o.disturb = func(t testing.TB) { must(t, s.Restart()) }
	b, end, err := offices.DialServiceBus(o.Address, kind == azureS)
	must(t, err)
	t.Cleanup(end)
	o.publisher = b.Publisher()
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(testing.TB) bool { return s.Len(o.Place) == 0 }
	return o
}

// openRabbit declares a queue on the server that was started for tests. A
// shared server is not restarted: its connections are cut.
func openRabbit(t testing.TB, inOrder bool) *office {
	t.Helper()
	dsn, channel := offices.RabbitMQ(t)
	proxy, through := wire.Between(t, dsn, wire.Raw)
	o := &office{post: post{rabbit, through, offices.Name("consume")}}
	o.topic = o.Place
	o.disturb = func(testing.TB) { proxy.Cut() }
	b := o.rabbit()
	for queue, options := range map[string]rabbitbroker.QueueOptions{
		o.Place: {SingleActive: inOrder}, o.Place + ".dead": {},
	} {
		offices.DeclareQueue(t, b, channel, queue, options)
	}
	o.publisher = b.Publisher("")
	t.Cleanup(func() { _ = o.publisher.Close() })
	o.idle = func(t testing.TB) bool {
		left, err := channel.QueueDeclarePassive(o.Place, true, false, false, false, nil)
		return err == nil && left.Messages == 0
	}
	return o
}

// publish publishes until everything is confirmed. It returns how often each
// message was published: if the reply to one call is lost, the broker may have
// that many copies.
func (o *office) publish(t testing.TB, ms []*broker.Message) (copies map[string]int) {
	t.Helper()
	copies = make(map[string]int)
	deadline := time.Now().Add(4 * time.Minute)
	for len(ms) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		for _, m := range ms {
			copies[m.ID]++
		}
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
	return copies
}
