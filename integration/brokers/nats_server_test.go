package brokers_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const natsPatience = proof.Patience

func natsContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*natsPatience)
	tb.Cleanup(cancel)
	return ctx
}

// dialNATS connects like a program that survives restarts.
func dialNATS[S interface{ URL() string }](tb testing.TB, servers ...S) jetstream.JetStream {
	tb.Helper()
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// natsPlace is a stream with a consumer, and a Broker for them.
type natsPlace struct {
	*natsbroker.Broker
	js     jetstream.JetStream
	stream string
	topic  string
	source broker.Source
}

var natsPlaces atomic.Int64

func newNATSPlace(tb testing.TB, js jetstream.JetStream, o *natsbroker.Options, change ...func(*jetstream.StreamConfig,
	*jetstream.ConsumerConfig)) *natsPlace {

	tb.Helper()
	name := fmt.Sprintf("S%d", natsPlaces.Add(1))
	p := &natsPlace{Broker: natsbroker.New(js, o), js: js, stream: name, topic: name + ".orders"}
	p.source = p.Consumer(name, "billing")
	p.create(tb, change...)
	return p
}

// create creates the stream and the consumer, or recreates them.
func (p *natsPlace) create(tb testing.TB, change ...func(*jetstream.StreamConfig, *jetstream.ConsumerConfig)) {
	tb.Helper()
	stream := jetstream.StreamConfig{Name: p.stream, Subjects: []string{p.stream + ".>"}}
	consumer := jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy}
	for _, c := range change {
		c(&stream, &consumer)
	}
	ctx := natsContext(tb)
	proof.Await(tb, "the stream and its consumer are there", func() bool {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := p.js.CreateStream(short, stream)
		if err == nil {
			_, err = p.js.CreateConsumer(short, p.stream, consumer)
		}
		return err == nil
	})
}

func natsAckWait(d time.Duration) func(*jetstream.StreamConfig, *jetstream.ConsumerConfig) {
	return func(_ *jetstream.StreamConfig, c *jetstream.ConsumerConfig) { c.AckWait = d }
}

func (p *natsPlace) message(i int) *broker.Message {
	return &broker.Message{ID: fmt.Sprintf("%s-%d", p.stream, i), Topic: p.topic, Body: []byte(strconv.Itoa(i))}
}

func (p *natsPlace) messages(n int) []*broker.Message {
	ms := make([]*broker.Message, n)
	for i := range ms {
		ms[i] = p.message(i)
	}
	return ms
}

// publish publishes the first n messages.
func (p *natsPlace) publish(tb testing.TB, n int) {
	tb.Helper()
	pub := p.Publisher()
	defer pub.Close()
	if errs := pub.Publish(natsContext(tb), p.messages(n)); errs != nil {
		tb.Fatal(errs)
	}
}

func (p *natsPlace) open(tb testing.TB, window int) broker.Session {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), natsPatience)
	defer cancel()
	s, err := p.source.Open(ctx, window)
	for err != nil && ctx.Err() == nil { // a cluster may be choosing a leader
		tick := time.NewTimer(100 * time.Millisecond)
		<-tick.C
		s, err = p.source.Open(ctx, window)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close(context.Background()) })
	return s
}
