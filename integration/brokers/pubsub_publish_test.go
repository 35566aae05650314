//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// onPublish answers requests to publish with what f returns, if that is not nil.
func onPublish(f func(r *pubsubpb.PublishRequest, pass func() error) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		pass := func() error { reply, err = handler(ctx, req); return err }
		r, ok := req.(*pubsubpb.PublishRequest)
		if !ok {
			return reply, pass()
		}
		if failed := f(r, pass); failed != nil {
			return nil, failed
		}
		if reply == nil && err == nil {
			return handler(ctx, req)
		}
		return reply, err
	}
}

// storedIDs returns the messages of the subscription, in order.
func (p *pubsubPlace) storedIDs() (ids []string) {
	for _, m := range p.server.Stored(p.subscription) {
		ids = append(ids, m.GetAttributes()["once-id"])
	}
	return ids
}

func idsOf(ms ...*broker.Message) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	return ids
}

// After a lost reply the message is published again, with its ID. Nothing of its
// ordering key is sent before that.
func TestPubSubPublishesInOrderAfterALostReply(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	ms := p.messages(2500, "key") // three requests
	other := &broker.Message{ID: "other", Topic: p.topic, OrderingKey: "other"}
	var requests atomic.Int64
	r.Intercept(onPublish(func(r *pubsubpb.PublishRequest, pass func() error) error {
		if r.GetMessages()[0].GetOrderingKey() == "key" && requests.Add(1) == 2 {
			return errors.Join(pass(), status.Error(codes.Unavailable, "the reply is lost"))
		}
		return nil
	}))
	errs := p.publisher.Publish(proof.Soon(t), append(ms[:len(ms):len(ms)], other))
	for i, err := range errs {
		if wanted := i < 1000 || i == len(ms); wanted != (err == nil) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests were sent: the adapter repeats them, or goes on after a failure", n)
	}
	r.Intercept(nil)
	publish(t, p.publisher, ms[1000:]...)
	want := append(append(idsOf(ms[:2000]...), idsOf(ms[1000:]...)...), "other")
	got := p.storedIDs()
	key := got[:0:0]
	for _, id := range got {
		if id != "other" {
			key = append(key, id)
		}
	}
	if fmt.Sprint(append(key, "other")) != fmt.Sprint(want) || len(got) != len(want) {
		t.Errorf("%d messages are stored, want %d in order", len(got), len(want))
	}
}

// A message that the service rejects does not hold up those that came with it.
func TestPubSubFindsTheMessageThatTheServiceRejects(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	ms := p.messages(20, "key")
	r.Intercept(onPublish(func(r *pubsubpb.PublishRequest, _ func() error) error {
		for _, m := range r.GetMessages() {
			if m.GetAttributes()["once-id"] == ms[13].ID {
				return status.Error(codes.InvalidArgument, "it does not match the schema of the topic")
			}
		}
		return nil
	}))
	for i, err := range p.publisher.Publish(proof.Soon(t), ms) {
		if (i == 13) != errors.Is(err, broker.ErrInvalid) || (i == 13) != (err != nil) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got, want := fmt.Sprint(p.storedIDs()), fmt.Sprint(append(idsOf(ms[:13]...), idsOf(ms[14:]...)...)); got != want {
		t.Errorf("stored are %s, want %s", got, want)
	}
}

func TestPubSubChecksLimitsBeforeSending(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	header := func(n, size int) map[string]string {
		h := make(map[string]string)
		for i := range n {
			h[fmt.Sprint("h", i)] = strings.Repeat("x", size)
		}
		return h
	}
	sent := func(change func(*broker.Message)) (*broker.Message, error) {
		m := p.messages(1, "key")[0]
		m.Time = time.Now()
		change(m)
		errs := p.publisher.Publish(proof.Soon(t), []*broker.Message{m})
		return m, errors.Join(errs...)
	}
	for name, change := range map[string]func(*broker.Message){
		"a body that is too large":  func(m *broker.Message) { m.Body = make([]byte, 10_000_000) },
		"a header that is too long": func(m *broker.Message) { m.Header = header(1, 1025) },
		"too many headers":          func(m *broker.Message) { m.Header = header(96, 1) },
		"a reserved header":         func(m *broker.Message) { m.Header = map[string]string{"googclient": ""} },
		"a header of the package":   func(m *broker.Message) { m.Header = map[string]string{"once-id": "x"} },
	} {
		if _, err := sent(change); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := r.Unsettled(p.subscription); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	// What is just allowed can also become a dead letter.
	m, err := sent(func(m *broker.Message) {
		m.Header = header(95, 1024)
		m.Body = make([]byte, 10_000_000-8<<10-95*(1024+12)-300)
	})
	proof.Must(t, err)
	s := openSession(t, p.source, 1)
	proof.Must(t, s.Reject(proof.Soon(t), receive(t, s, 1), strings.Repeat("why ", 400)))
	dead := receive(t, openSession(t, pubsubbroker.New(r.client, nil).Subscription(p.dead), 1), 1)[0].Message
	if dead.ID != m.ID || len(dead.Body) != len(m.Body) || len(dead.Header) != 98 {
		t.Errorf("the dead letter of %s is %s, with %d bytes and %d headers", m.ID, dead.ID, len(dead.Body), len(dead.Header))
	}
}

// A batch of large messages is divided, so that no request is too large.
func TestPubSubDividesBatchesBySize(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	ms := p.messages(7, "key")
	for _, m := range ms {
		m.Body = make([]byte, 3_300_000)
	}
	publish(t, p.publisher, ms...)
	if got := fmt.Sprint(p.storedIDs()); got != fmt.Sprint(idsOf(ms...)) {
		t.Errorf("stored are %s", got)
	}
}

func TestPubSubPublisherIsClosed(t *testing.T) {
	t.Parallel()
	p := startPubSub(t).place(t, pubsubbroker.Options{}, nil)
	proof.Must(t, p.publisher.Close())
	if errs := p.publisher.Publish(proof.Soon(t), p.messages(1, "")); len(errs) != 1 || errs[0] == nil {
		t.Errorf("Publish: %v", errs)
	}
}
