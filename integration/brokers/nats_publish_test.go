package brokers_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func (p *natsPlace) stored(tb testing.TB) jetstream.StreamState {
	tb.Helper()
	s, err := p.js.Stream(natsContext(tb), p.stream)
	if err != nil {
		tb.Fatal(err)
	}
	return s.CachedInfo().State
}

func TestNATSDuplicatesAreStoredOnce(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	for range 3 {
		p.publish(t, 20)
	}
	if n := p.stored(t).Msgs; n != 20 {
		t.Errorf("20 messages were published three times, and %d are stored", n)
	}
	for window, want := range map[time.Duration]time.Duration{0: 2 * time.Minute, time.Hour: time.Hour, -1: 0} {
		pub := natsbroker.New(p.js, &natsbroker.Options{DuplicateWindow: window}).Publisher()
		if got := pub.(broker.Deduplicator).DeduplicationWindow(); got != want {
			t.Errorf("DuplicateWindow %v says %v", window, got)
		}
	}
}

// 64 goroutines use one publisher. Each keeps its order, and all confirmed
// messages are stored.
func TestNATSPublishConcurrently(t *testing.T) {
	const callers, each = 64, 30
	// Each message is synced to a disk that other tests use too.
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), &natsbroker.Options{ReplyWait: time.Minute})
	pub := p.Publisher()
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			var ms []*broker.Message
			for i := range each {
				ms = append(ms, &broker.Message{ID: fmt.Sprintf("%d-%d", c, i), Topic: p.topic, OrderingKey: fmt.Sprint(c)})
			}
			if errs := pub.Publish(t.Context(), ms); errs != nil {
				t.Errorf("%d errors, the first %v", len(errs), cmp.Or(errs...))
			}
		})
	}
	wg.Wait()
	next := make(map[string]int)
	s := p.open(t, 200)
	for got := 0; got < callers*each; {
		ds := receive(t, s, min(200, callers*each-got))
		for _, d := range ds {
			key := d.Message.OrderingKey
			if want := fmt.Sprintf("%s-%d", key, next[key]); d.Message.ID != want {
				t.Fatalf("%s came, want %s", d.Message.ID, want)
			}
			next[key]++
		}
		got += len(ds)
		if err := s.Ack(t.Context(), ds); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNATSPublishErrors(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	p := newNATSPlace(t, js, nil, func(s *jetstream.StreamConfig, _ *jetstream.ConsumerConfig) { s.MaxMsgSize = 100 << 10 })
	// A service answers, and not a stream.
	if _, err := js.Conn().Subscribe("service", func(m *nats.Msg) { m.Respond([]byte("hello")) }); err != nil {
		t.Fatal(err)
	}
	// A subscriber does not answer.
	if _, err := js.Conn().Subscribe("silence", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 60<<10)
	pub := natsbroker.New(js, &natsbroker.Options{ReplyWait: time.Second}).Publisher()
	for _, c := range []struct {
		message broker.Message
		invalid bool
		text    string
	}{
		{broker.Message{Topic: "nobody"}, false, "no stream takes"},
		{broker.Message{Topic: "service"}, false, "something other than a stream"},
		{broker.Message{Topic: "silence"}, false, "did not answer in time"},
		{broker.Message{Topic: p.topic, Body: make([]byte, 9<<20)}, true, "too large for"},
		{broker.Message{Topic: p.topic, Body: make([]byte, 200<<10)}, true, "too large for"},
		{broker.Message{Topic: p.topic, Header: map[string]string{"a": long, "b": long}}, true, "too large for"},
		{broker.Message{Topic: p.stream + ".*"}, true, "not a subject"},
		{broker.Message{Topic: p.stream + ".>"}, true, "not a subject"},
		{broker.Message{Topic: p.stream + "..a"}, true, "not a subject"},
		{broker.Message{Topic: p.stream + ".a b"}, true, "not a subject"},
		{broker.Message{Topic: "$JS.API.STREAM.DELETE." + p.stream}, true, "not a subject"},
	} {
		c.message.ID = "id"
		good := &broker.Message{ID: rangeID(c.message.Topic, c.message.Body), Topic: p.topic}
		errs := pub.Publish(t.Context(), []*broker.Message{good, &c.message})
		if len(errs) != 2 || errs[0] != nil || errs[1] == nil {
			t.Errorf("%s: %v", c.message.Topic, errs)
			continue
		}
		if errors.Is(errs[1], broker.ErrInvalid) != c.invalid || !strings.Contains(errs[1].Error(), c.text) {
			t.Errorf("%s: %v", c.message.Topic, errs[1])
		}
	}
	if err := pub.Close(); err != nil {
		t.Fatal(err)
	}
	if errs := pub.Publish(t.Context(), p.messages(1)); len(errs) != 1 || errs[0] == nil {
		t.Errorf("Publish after Close: %v", errs)
	}
}

func rangeID(topic string, body []byte) string { return fmt.Sprintf("beside %s %d", topic, len(body)) }

// A batch that is larger than the limit of one request.
func TestNATSPublishLarge(t *testing.T) {
	p := newNATSPlace(t, dialNATS(t, offices.StartNATS(t)), nil)
	ms := p.messages(300)
	for i := range 12 {
		ms[100+i].Body = bytes.Repeat([]byte{byte(i)}, 1<<20)
	}
	if errs := p.Publisher().Publish(t.Context(), ms); errs != nil {
		t.Fatal(errs)
	}
	s := p.open(t, 300)
	for i, d := range receive(t, s, len(ms)) {
		if d.Message.ID != ms[i].ID || !bytes.Equal(d.Message.Body, ms[i].Body) {
			t.Fatalf("message %d is %s with %d bytes", i, d.Message.ID, len(d.Message.Body))
		}
	}
}

func TestNATSPublishWithoutServer(t *testing.T) {
	server := offices.StartNATS(t)
	p := newNATSPlace(t, dialNATS(t, server), nil)
	pub := p.Publisher()
	server.Stop()
	proof.Await(t, "the connection is seen to be lost", func() bool { return !p.js.Conn().IsConnected() })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	errs := pub.Publish(ctx, p.messages(3))
	if len(errs) != 3 || !errors.Is(errs[2], context.DeadlineExceeded) {
		t.Errorf("errors %v", errs)
	}
	server.Start(t)
	p.publish(t, 3) // the same again, with the connection that has come back
	if n := p.stored(t).Msgs; n != 3 {
		t.Errorf("%d messages are stored, want 3", n)
	}
}
