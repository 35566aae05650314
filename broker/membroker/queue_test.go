package membroker_test

import (
	"errors"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

func TestATopicReachesEveryQueueThatIsBoundToIt(t *testing.T) {
	b := membroker.New(nil)
	b.Bind("billing", "orders")
	b.Bind("billing", "orders") // twice is once
	b.Bind("shipping", "orders")
	log := b.Log("orders", "audit", 1)
	publish(t, b, "orders", "1", "2")
	publish(t, b, "billing", "3") // the topic with the queue's own name
	want(t, open(t, b.Queue("billing"), 9), "1 2 3")
	want(t, open(t, b.Queue("shipping"), 9), "1 2")
	want(t, open(t, log, 9), "1 2")
	empty(t, open(t, b.Queue("orders"), 9)) // made too late
}

func TestReturnedMessagesKeepTheirPlace(t *testing.T) {
	b := membroker.New(nil)
	s := open(t, b.Queue("q"), 3)
	publish(t, b, "q", "1", "2", "3", "4", "5")
	ds := want(t, s, "1 2 3")
	must(t, s.Return(ctx, ds[1:2], 0))
	ds = append(ds[:1], append(want(t, s, "2+2"), ds[2])...)
	must(t, s.Ack(ctx, ds[:1]))
	want(t, s, "4")
	must(t, s.Close(ctx))
	want(t, open(t, b.Queue("q"), 9), "2+3 3+2 4+2 5")
}

func TestMessagesAreTheUnsettledOnes(t *testing.T) {
	b := membroker.New(nil)
	s := open(t, b.Queue("q"), 3)
	publish(t, b, "q", "1", "2", "3", "4")
	ds := want(t, s, "1 2 3")
	must(t, s.Ack(ctx, ds[1:2]))
	if got := ids(b.Messages("q")); got != "1 3 4" {
		t.Errorf("in the queue are %q", got)
	}
	must(t, s.Reject(ctx, ds[:1], "broken"))
	dead := b.Messages("q.dead")
	if ids(dead) != "1" || dead[0].Header["once-reason"] != "broken" || ids(b.Messages("q")) != "3 4" {
		t.Errorf("dead are %q, with %v; in the queue are %q", ids(dead), dead[0].Header, ids(b.Messages("q")))
	}
	dead[0].Body[0], dead[0].Header["once-reason"] = 'x', "changed"
	if again := b.Messages("q.dead")[0]; string(again.Body) != "1" || again.Header["once-reason"] != "broken" {
		t.Errorf("a caller has changed a message in a queue: %+v", again)
	}
	if ms := b.Messages("never made"); len(ms) != 0 {
		t.Errorf("in a queue that is not there are %q", ids(ms))
	}
	want(t, open(t, b.Queue("q.dead"), 1), "1") // from there it can be handled again
}

// Settling an earlier delivery, or one of another session, must not settle a
// later one.
func TestADeliveryIsSettledOnce(t *testing.T) {
	b := membroker.New(nil)
	s, other := open(t, b.Queue("q"), 2), open(t, b.Queue("q"), 2)
	publish(t, b, "q", "1", "2")
	ds := want(t, s, "1 2")
	must(t, s.Return(ctx, ds[:1], 0))
	want(t, s, "1+2")
	for name, call := range map[string]func() error{
		"again":               func() error { return s.Ack(ctx, ds[:1]) },
		"in another session":  func() error { return other.Ack(ctx, ds[1:]) },
		"a delivery made up":  func() error { return s.Ack(ctx, []broker.Delivery{{Tag: "x"}}) },
		"a delivery of zeros": func() error { return s.Reject(ctx, []broker.Delivery{{}}, "") },
	} {
		if err := call(); err == nil {
			t.Errorf("settled %s, without an error", name)
		}
	}
	if err := s.Ack(ctx, ds); err == nil || ids(b.Messages("q")) != "1" {
		t.Errorf("one of two could be settled: %v, and %q is left", err, ids(b.Messages("q")))
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	b := membroker.New(nil)
	for _, src := range []broker.Source{b.Queue("q"), b.Log("l", "g", 2)} {
		if _, err := src.Open(ctx, 0); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s with a window of 0: %v", src.Name(), err)
		}
		if _, err := open(t, src, 1).Receive(ctx, 0); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%s: Receive of nothing: %v", src.Name(), err)
		}
	}
	for _, partitions := range []int{-1, 0, 3} {
		if _, err := b.Log("l", "g", partitions).Open(ctx, 1); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("a log of 2 partitions opened with %d: %v", partitions, err)
		}
	}
}

func TestAClosedPublisherFails(t *testing.T) {
	b := membroker.New(nil)
	b.Queue("q")
	p, other := b.Publisher(), b.Publisher()
	must(t, p.Close())
	must(t, p.Close())
	ms := []*broker.Message{message("1", "q", "")}
	if errs := p.Publish(ctx, ms); len(errs) != 1 || errs[0] == nil {
		t.Errorf("a closed publisher publishes: %v", errs)
	}
	if errs := other.Publish(ctx, ms); errs != nil {
		t.Errorf("another publisher was closed too: %v", errs)
	}
}
