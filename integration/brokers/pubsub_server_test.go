//go:build linux

package brokers_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/internal/pubsubfake"
)

// pubsubServer is an imitation of Pub/Sub with a client.
type pubsubServer struct {
	*pubsubfake.Server
	client *pubsub.Client
	names  atomic.Int64
}

func startPubSub(t *testing.T) *pubsubServer {
	t.Helper()
	running, err := pubsubfake.Start()
	proof.Must(t, err)
	t.Cleanup(running.Stop)
	return &pubsubServer{Server: running, client: dialPubSub(t, running.Addr())}
}

// startPstest starts the server that comes with the client library.
func startPstest(t *testing.T) *pubsubServer {
	t.Helper()
	running := pstest.NewServer()
	t.Cleanup(func() { _ = running.Close() })
	return &pubsubServer{client: dialPubSub(t, running.Addr)}
}

func dialPubSub(t *testing.T, address string) *pubsub.Client {
	t.Helper()
	client, err := offices.DialPubSub(address)
	proof.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// restart stops the server, which keeps its messages, and starts it.
func (r *pubsubServer) restart(tb testing.TB) {
	tb.Helper()
	r.Stop()
	offices.OnItsPort(tb, r.Listen)
}

// pubsubPlace is a topic with a subscription, and a topic for dead letters with
// another one.
type pubsubPlace struct {
	server       *pubsubServer
	unordered    bool
	broker       *pubsubbroker.Broker
	publisher    broker.Publisher
	source       broker.Source
	topic, dead  string
	subscription string // with the project
}

// place creates a place. Its messages come again a second after their session has
// died, which is shorter than the service accepts.
func (r *pubsubServer) place(tb testing.TB, o pubsubbroker.Options, change func(*pubsubpb.Subscription)) *pubsubPlace {
	tb.Helper()
	name := fmt.Sprintf("orders-%d", r.names.Add(1))
	p := &pubsubPlace{server: r, unordered: o.Unordered, topic: name, dead: name + ".dead", subscription: "projects/shop/subscriptions/" + name + ".billing"}
	o.DeadLetter = p.dead
	p.broker = pubsubbroker.New(r.client, &o)
	p.publisher = p.broker.Publisher()
	p.source = p.broker.Subscription(p.subscription)
	keep := &pubsubbroker.SubscriptionOptions{AckDeadline: time.Second}
	proof.Must(tb, p.broker.DeclareSubscription(proof.Soon(tb), p.topic, p.subscription, keep))
	proof.Must(tb, p.broker.DeclareSubscription(proof.Soon(tb), p.dead, p.dead, keep))
	if change != nil {
		p.recreate(tb, change)
	}
	return p
}

// recreate creates the subscription again, with other settings.
func (p *pubsubPlace) recreate(tb testing.TB, change func(*pubsubpb.Subscription)) {
	tb.Helper()
	admin := p.server.client.SubscriptionAdminClient
	settings, err := admin.GetSubscription(proof.Soon(tb), &pubsubpb.GetSubscriptionRequest{Subscription: p.subscription})
	proof.Must(tb, err)
	proof.Must(tb, admin.DeleteSubscription(proof.Soon(tb), &pubsubpb.DeleteSubscriptionRequest{Subscription: p.subscription}))
	change(settings)
	_, err = admin.CreateSubscription(proof.Soon(tb), settings)
	proof.Must(tb, err)
}

func (p *pubsubPlace) harnessPlace() brokertest.Place {
	return brokertest.Place{Publisher: p.publisher, Source: p.source, Topic: p.topic, Unroutable: "no-such-topic",
		KeyRepeats: !p.unordered, DeadLetters: p.letters}
}

// letters returns the dead letters.
func (p *pubsubPlace) letters(tb testing.TB) []*broker.Message {
	tb.Helper()
	s := openSession(tb, pubsubbroker.New(p.server.client, &pubsubbroker.Options{Unordered: true}).Subscription(p.dead), 100)
	defer s.Close(proof.Soon(tb))
	return receiveAll(tb, s)
}

func (p *pubsubPlace) messages(n int, key string) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprintf("%s-%d", p.topic, i), Topic: p.topic, OrderingKey: key, Body: []byte(fmt.Sprint(i))})
	}
	return ms
}

func exactlyOnce(settings *pubsubpb.Subscription) { settings.EnableExactlyOnceDelivery = true }

func unordered(settings *pubsubpb.Subscription) { settings.EnableMessageOrdering = false }
