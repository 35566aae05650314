//go:build linux

package publish

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The kinds of brokers.
const (
	kafka  = "kafka"
	natsJS = "nats"
	rabbit = "rabbit"
	redisS = "redis"
	sqsQ   = "sqs" // messages come in from a standard queue, and go out to a FIFO queue
	pubsub = "pubsub"
	hubs   = "event hubs"
	azure  = "service bus" // with sessions
)

// link is a broker with the place where messages come in and the place where
// they go out, as a plan has it. The places are topics or queue names. A stream
// has the name without the part after the dot.
type link struct{ Kind, Address, In, Out string }

const group = "soak"

// isLog reports whether sources have positions.
func (l link) isLog() bool { return l.Kind == kafka || l.Kind == hubs }

// source returns the source of a process. Members of a group find each other in
// its store, if the broker does not help them.
func (l link) source(place string, members once.Store) (broker.Source, func(), error) {
	switch l.Kind {
	case kafka:
		return offices.DialKafka(l.Address).Topics(stream(place), place), func() {}, nil
	case natsJS:
		js, err := offices.DialNATS(l.Address)
		if err != nil {
			return nil, nil, err
		}
		return natsbroker.New(js, nil).Consumer(stream(place), group), js.Conn().Close, nil
	case redisS:
		b, end, err := l.redis()
		if err != nil {
			return nil, nil, err
		}
		return b.Group(place, group), end, nil
	case sqsQ:
		return l.sqs().Queue(place), func() {}, nil
	case pubsub:
		b, end, err := l.pubsub()
		if err != nil {
			return nil, nil, err
		}
		return b.Subscription(place), end, nil
	case hubs:
		b, err := offices.DialHubs(l.Address)
		if err != nil {
			return nil, nil, err
		}
		return b.Log(place, group, members), func() {}, nil
	case azure:
		b, end, err := offices.DialServiceBus(l.Address, true)
		if err != nil {
			return nil, nil, err
		}
		return b.Queue(place), end, nil
	}
	return rabbitbroker.New(l.Address, nil).Queue(place), func() {}, nil
}

// publisher returns the publisher of a process.
func (l link) publisher() (broker.Publisher, func(), error) {
	switch l.Kind {
	case kafka:
		p := offices.DialKafka(l.Address).Publisher()
		return p, func() { _ = p.Close() }, nil
	case natsJS:
		js, err := offices.DialNATS(l.Address)
		if err != nil {
			return nil, nil, err
		}
		p := natsbroker.New(js, &natsbroker.Options{DuplicateWindow: -1, ReplyWait: time.Second}).Publisher()
		return p, func() { _ = p.Close(); js.Conn().Close() }, nil
	case redisS:
		b, end, err := l.redis()
		if err != nil {
			return nil, nil, err
		}
		p := b.Publisher()
		return p, func() { _ = p.Close(); end() }, nil
	case sqsQ:
		return l.sqs().Publisher(), func() {}, nil
	case pubsub:
		b, end, err := l.pubsub()
		if err != nil {
			return nil, nil, err
		}
		p := b.Publisher()
		return p, func() { _ = p.Close(); end() }, nil
	case azure:
		b, end, err := offices.DialServiceBus(l.Address, true)
		if err != nil {
			return nil, nil, err
		}
		p := b.Publisher()
		return p, func() { _ = p.Close(); end() }, nil
	case hubs:
		b, err := offices.DialHubs(l.Address)
		if err != nil {
			return nil, nil, err
		}
		p := b.Publisher()
		return p, func() { _ = p.Close() }, nil
	}
	p := rabbitbroker.New(l.Address, nil).Publisher("")
	return p, func() { _ = p.Close() }, nil
}

func (l link) sqs() *sqsbroker.Broker {
	return sqsbroker.New(offices.DialSQS(l.Address), &sqsbroker.Options{Visibility: 2 * time.Second, Unordered: true})
}

func (l link) redis() (*redisbroker.Broker, func(), error) {
	o, err := redis.ParseURL(l.Address)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(o)
	return redisbroker.New(client, &redisbroker.Options{ClaimAfter: time.Second}), func() { _ = client.Close() }, nil
}

func (l link) pubsub() (*pubsubbroker.Broker, func(), error) {
	client, err := offices.DialPubSub(l.Address)
	if err != nil {
		return nil, nil, err
	}
	return pubsubbroker.New(client, nil), func() { _ = client.Close() }, nil
}

func stream(place string) string {
	name, _, _ := strings.Cut(place, ".")
	return name
}

// office is a running broker, as the test that runs it sees it.
type office struct {
	link
	sender broker.Publisher
}

func openOffice(t testing.TB, kind string) *office {
	t.Helper()
	name := offices.Name("publish")
	o := &office{link: link{Kind: kind, In: name + "-in.all", Out: name + "-out.all"}}
	switch kind {
	case kafka:
		o.openKafka(t)
	case natsJS:
		o.openNATS(t)
	case redisS:
		o.openRedis(t)
	case sqsQ:
		o.In, o.Out = name+"-in", name+"-out.fifo"
		o.openSQS(t)
	case pubsub:
		o.openPubSub(t)
	case hubs:
		running := offices.StartHubs(t)
		o.Address = running.ConnectionString()
		running.CreateHub(o.In, 2, group)
		running.CreateHub(o.Out, 2, group)
	case azure:
		o.Address = offices.StartServiceBus(t, true, o.In, o.Out).ConnectionString()
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
	for _, name := range []string{o.In, o.Out} {
		offices.CreateTopic(t, o.Address, name, 2)
	}
}

// expel removes killed members from Kafka's group. A real broker waits for
// their session timeout; kfake waits for ever for a member that died between
// join and sync.
func (o *office) expel(t testing.TB, place string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.Address, ",")...))
	must(t, err)
	defer client.Close()
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{stream(place)}
	described, err := describe.RequestWith(soon(t), client)
	must(t, err)
	for _, g := range described.Groups {
		for _, m := range g.Members {
			leave, gone := kmsg.NewPtrLeaveGroupRequest(), kmsg.NewLeaveGroupRequestMember()
			gone.MemberID = m.MemberID
			leave.Group, leave.MemberID, leave.Members = g.Group, m.MemberID, append(leave.Members, gone)
			_, err := leave.RequestWith(soon(t), client)
			must(t, err)
		}
	}
}

func (o *office) openNATS(t testing.TB) {
	o.Address = offices.StartNATS(t).URL()
	js, err := offices.DialNATS(o.Address)
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

func (o *office) openRedis(t testing.TB) {
	server.Need(t, server.Redis)
	running, err := server.StartRedis(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, running.Stop()) })
	o.Address = running.DSN()
	b, end, err := o.redis()
	must(t, err)
	t.Cleanup(end)
	for _, place := range []string{o.In, o.Out} {
		must(t, b.DeclareGroup(soon(t), place, group))
	}
}

func (o *office) openSQS(t testing.TB) {
	o.Address = offices.StartSQS(t).URL()
	client := offices.DialSQS(o.Address)
	offices.CreateQueue(t, client, o.In, nil)
	offices.CreateQueue(t, client, o.Out, map[string]string{"FifoQueue": "true"})
}

// openPubSub starts pstest in this process.
func (o *office) openPubSub(t testing.TB) {
	running := pstest.NewServer()
	t.Cleanup(func() { _ = running.Close() })
	o.Address = running.Addr
	b, end, err := o.pubsub()
	must(t, err)
	t.Cleanup(end)
	for _, place := range []string{o.In, o.Out} {
		must(t, b.DeclareSubscription(soon(t), place, place, &pubsubbroker.SubscriptionOptions{AckDeadline: time.Second}))
	}
}

// openRabbit declares queues on the server that was started for tests.
func (o *office) openRabbit(t testing.TB) {
	address, channel := offices.RabbitMQ(t)
	o.Address = address
	for _, queue := range []string{o.In, o.Out} {
		offices.DeclareQueue(t, rabbitbroker.New(address, nil), channel, queue, rabbitbroker.QueueOptions{})
	}
}
