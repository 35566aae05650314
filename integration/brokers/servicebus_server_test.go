package brokers_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
)

// fakeServiceBus is a server in this process that speaks the protocol of Service
// Bus. It is not the service.
type fakeServiceBus struct {
	*fakeamqp.Server
	client     *azservicebus.Client
	management *fakeamqp.Management
	names      atomic.Int64
}

func startServiceBus(tb testing.TB) *fakeServiceBus {
	tb.Helper()
	s, err := fakeamqp.Start()
	proof.Must(tb, err)
	tb.Cleanup(s.Close)
	f := &fakeServiceBus{Server: s, management: &fakeamqp.Management{Server: s}}
	f.client = f.connect(tb)
	return f
}

// connect returns a client that tries again at once, as long as a test waits.
func (f *fakeServiceBus) connect(tb testing.TB) *azservicebus.Client {
	tb.Helper()
	client, err := azservicebus.NewClientFromConnectionString(f.ConnectionString(), &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 5, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond}})
	proof.Must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Close(ctx)
	})
	return client
}

// serviceBusPlace is a queue with its dead letters.
type serviceBusPlace struct {
	*fakeServiceBus
	broker    *servicebusbroker.Broker
	publisher broker.Publisher
	source    broker.Source
	queue     string
}

// place creates a queue, whose locks are short unless the options say otherwise.
func (f *fakeServiceBus) place(tb testing.TB, o fakeamqp.QueueOptions) *serviceBusPlace {
	tb.Helper()
	p := &serviceBusPlace{fakeServiceBus: f, queue: fmt.Sprintf("once-%d", f.names.Add(1))}
	if o.LockDuration == 0 {
		o.LockDuration = 2 * time.Second
	}
	if o.MaxDelivery == 0 {
		o.MaxDelivery = 1000
	}
	f.CreateQueue(p.queue, o)
	p.broker = f.broker(tb, o.Sessions)
	p.publisher = p.broker.Publisher()
	tb.Cleanup(func() { _ = p.publisher.Close() })
	p.source = p.broker.Queue(p.queue)
	return p
}

func (f *fakeServiceBus) broker(tb testing.TB, sessions bool) *servicebusbroker.Broker {
	tb.Helper()
	management, err := admin.NewClientFromConnectionString(f.ConnectionString(), &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: f.management, Retry: policy.RetryOptions{MaxRetries: -1}}})
	proof.Must(tb, err)
	return servicebusbroker.New(f.client, &servicebusbroker.Options{Sessions: sessions, SessionIdle: 20 * time.Millisecond, MaxSessions: 16,
		Management: management})
}

func (p *serviceBusPlace) harnessPlace() brokertest.Place {
	return brokertest.Place{Publisher: p.publisher, Source: p.source, Topic: p.queue, DeadLetters: p.letters, Unroutable: "no-such-queue"}
}

// letters returns the dead letters, and leaves them where they are.
func (p *serviceBusPlace) letters(tb testing.TB) []*broker.Message {
	tb.Helper()
	s := openSession(tb, p.broker.DeadLetters(p.source), 1000)
	defer s.Close(proof.Soon(tb))
	return receiveAll(tb, s)
}

func (p *serviceBusPlace) publish(tb testing.TB, ms ...*broker.Message) {
	tb.Helper()
	publish(tb, p.publisher, ms...)
}

func (p *serviceBusPlace) messages(n int, key string) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprintf("%s-%s-%d", p.queue, key, i), Topic: p.queue, OrderingKey: key, Body: []byte(fmt.Sprint(i))})
	}
	return ms
}
