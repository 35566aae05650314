package sqsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/internal/fakesqs"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// topicPrefix begins the ARNs of topics.
const topicPrefix = "arn:aws:sns:" + fakesqs.Region + ":" + fakesqs.Account + ":"

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	tb.Cleanup(cancel)
	return ctx
}

// fake is a fakesqs.Server that listens.
type fake struct {
	service *fakesqs.Server
	address string
	server  *http.Server
	client  *sqs.Client
	topics  *sns.Client
	names   atomic.Int64
}

func startFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{service: &fakesqs.Server{PollSecond: 30 * time.Millisecond}, address: "127.0.0.1:0"}
	f.listen(t)
	t.Cleanup(func() { _ = f.server.Close() })
	f.dial("http://" + f.address)
	return f
}

func (f *fake) dial(endpoint string) {
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})
	f.client = sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint, Credentials: credentials})
	f.topics = sns.New(sns.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint, Credentials: credentials})
}

func (f *fake) listen(tb testing.TB) {
	tb.Helper()
	listener, err := net.Listen("tcp", f.address)
	must(tb, err)
	f.address = listener.Addr().String()
	f.server = &http.Server{Handler: f.service}
	go f.server.Serve(listener)
}

// restart breaks all connections.
func (f *fake) restart(tb testing.TB) {
	tb.Helper()
	must(tb, f.server.Close())
	f.listen(tb)
}

// place is a queue with another one for dead letters.
type place struct {
	*fake
	fifo        bool
	queue, dead string
	broker      *sqsbroker.Broker
	publisher   broker.Publisher
	source      broker.Source
}

func suffix(fifo bool) string {
	if fifo {
		return ".fifo"
	}
	return ""
}

// place creates a place. The queue names its dead-letter queue in its redrive
// policy.
func (f *fake) place(tb testing.TB, fifo bool) *place {
	tb.Helper()
	name := fmt.Sprintf("once-%d", f.names.Add(1))
	p := &place{fake: f, fifo: fifo, queue: name + suffix(fifo), dead: name + "-dead" + suffix(fifo)}
	p.create(tb, p.dead, nil)
	p.create(tb, p.queue, map[string]string{"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"1000"}`, p.arn(tb, p.dead))})
	p.broker = sqsbroker.New(f.client, &sqsbroker.Options{Visibility: 3 * time.Second, Unordered: true})
	p.publisher, p.source = p.broker.Publisher(), p.broker.Queue(p.queue)
	return p
}

func (p *place) create(tb testing.TB, queue string, attributes map[string]string) {
	tb.Helper()
	if attributes == nil {
		attributes = make(map[string]string)
	}
	if p.fifo {
		attributes["FifoQueue"] = "true"
	}
	_, err := p.client.CreateQueue(soon(tb), &sqs.CreateQueueInput{QueueName: &queue, Attributes: attributes})
	must(tb, err)
}

// url returns the URL of a queue.
func (f *fake) url(tb testing.TB, queue string) *string {
	tb.Helper()
	out, err := f.client.GetQueueUrl(soon(tb), &sqs.GetQueueUrlInput{QueueName: &queue})
	must(tb, err)
	return out.QueueUrl
}

// arn returns the ARN of a queue.
func (f *fake) arn(tb testing.TB, queue string) string {
	tb.Helper()
	out, err := f.client.GetQueueAttributes(soon(tb), &sqs.GetQueueAttributesInput{QueueUrl: f.url(tb, queue),
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
	must(tb, err)
	return out.Attributes[string(types.QueueAttributeNameQueueArn)]
}

func (p *place) messages(n int, key string) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprintf("%s-%s-%d", p.queue, key, i), Topic: p.queue, OrderingKey: key, Body: []byte(fmt.Sprint(i))})
	}
	return ms
}

func (p *place) publish(tb testing.TB, ms ...*broker.Message) {
	tb.Helper()
	for i, err := range p.publisher.Publish(soon(tb), ms) {
		if err != nil {
			tb.Fatalf("message %s: %v", ms[i].ID, err)
		}
	}
}

func open(tb testing.TB, source broker.Source, window int) broker.Session {
	tb.Helper()
	s, err := source.Open(soon(tb), window)
	must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// wantCounts checks how many messages and dead letters there are.
func (p *place) wantCounts(tb testing.TB, messages, dead int) {
	tb.Helper()
	if p.service.Count(p.queue) != messages || p.service.Count(p.dead) != dead {
		tb.Errorf("there are %d messages and %d dead letters, want %d and %d", p.service.Count(p.queue), p.service.Count(p.dead), messages, dead)
	}
}

func wantRejectToFail(tb testing.TB, s broker.Session, ds []broker.Delivery) {
	tb.Helper()
	if err := s.Reject(soon(tb), ds, "no use"); err == nil {
		tb.Fatal("Reject says that all is well")
	}
}

// receive receives n deliveries.
func receive(tb testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	tb.Helper()
	ctx := soon(tb)
	for len(ds) < n {
		more, err := s.Receive(ctx, n-len(ds))
		if err != nil {
			tb.Fatalf("received %d of %d messages: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

// receiveNothing fails if a message comes within a time.
func receiveNothing(tb testing.TB, s broker.Session, within time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), within)
	defer cancel()
	switch ds, err := s.Receive(ctx, 100); {
	case err == nil:
		tb.Fatalf("%d messages have come, the first is %v", len(ds), ds[0].Message)
	case !errors.Is(err, context.DeadlineExceeded):
		tb.Fatal(err)
	}
}
