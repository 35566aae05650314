package demo

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

func messageOf(t *testing.T, o Order) *broker.Message {
	t.Helper()
	m, err := tell(o.ID, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPublisherAsksBeforeAndAfter(t *testing.T) {
	b := membroker.New(nil)
	_ = b.Queue(topic) // takes the topic
	var asked []point
	p := &tappedPublisher{b.Publisher(), func(at point, _ string, o Order, m *broker.Message) bool {
		asked = append(asked, at)
		if (m != nil) != (at == atPublished) {
			t.Errorf("%s: message %v", at, m)
		}
		return false
	}}
	o := Order{ID: "order-1", Customer: "customer-1"}
	if errs := p.Publish(t.Context(), []*broker.Message{messageOf(t, o)}); errs != nil {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Publish(ctx, []*broker.Message{{ID: "no order", Topic: topic, Body: []byte("x")}})
	if len(asked) != 2 || asked[0] != atPublish || asked[1] != atPublished {
		t.Errorf("it asked at %q", asked)
	}
}

// A delivery that waits for its answer does not hold up the others, and one whose ack is lost comes again.
func TestSessionHoldsOneAndLosesAcks(t *testing.T) {
	b := membroker.New(nil)
	release, lost := make(chan bool), false
	s := &tappedSource{b.Queue(topic), "points", func(at point, consumer string, o Order, _ *broker.Message) bool {
		switch {
		case consumer != "points":
			t.Errorf("it asks for %q", consumer)
		case at == atDelivery && o.Window == raced:
			<-release
		case at == atAck && o.Window == lostAck && !lost:
			lost = true
			return true
		}
		return false
	}}
	session, err := s.Open(t.Context(), 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []Order{{ID: "held", Window: raced}, {ID: "lost", Window: lostAck}} {
		if errs := b.Publisher().Publish(t.Context(), []*broker.Message{messageOf(t, o)}); errs != nil {
			t.Fatal(errs)
		}
	}
	next := func(want string) []broker.Delivery {
		t.Helper()
		ds, err := session.Receive(t.Context(), 8)
		if err != nil || len(ds) != 1 || ds[0].Message.ID != want {
			t.Fatalf("received %+v, %v, want %s", ds, err, want)
		}
		return ds
	}
	for range 2 {
		if err := session.Ack(t.Context(), next("lost")); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	if err := session.Ack(t.Context(), next("held")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := session.Receive(ctx, 8); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing is left, and it received: %v", err)
	}
	if err := session.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
