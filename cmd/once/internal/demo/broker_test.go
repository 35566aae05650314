package demo

import (
	"context"
	"testing"
	"time"
)

func TestBrokerDeliversUntilAcknowledged(t *testing.T) {
	b := newBroker([][]message{{{Order{ID: "a"}, []fate{{dieAt: afterCharge}, {loseAck: true}, {}}}}})
	ctx := t.Context()

	d := b.next(ctx)
	if d.fates[0].dieAt != afterCharge {
		t.Fatalf("first delivery: %+v", d)
	}
	b.crashed(d)

	d = b.next(ctx)
	b.refused(d, 0)
	d = b.next(ctx)
	if !d.fates[0].loseAck || d.refusals != 1 {
		t.Fatalf("a refused delivery lost its fate: %+v", d)
	}
	b.handled(d)
	if _, acked := b.counts(); acked["a"] {
		t.Fatal("the lost ack arrived")
	}

	b.handled(b.next(ctx))
	counts, acked := b.counts()
	if !acked["a"] || counts.Deliveries != 4 || counts.Crashes != 1 {
		t.Errorf("acked %v, %+v", acked, counts)
	}
	if d := b.next(ctx); d != nil {
		t.Errorf("delivered again after the ack: %+v", d)
	}
}

func TestRaceWaitsForTwoWorkers(t *testing.T) {
	twin := message{Order{ID: "a"}, []fate{{}}}
	b := newBroker([][]message{{twin, twin}})
	got := make(chan *delivery)
	for range 2 {
		go func() { got <- b.next(t.Context()) }()
	}
	for range 2 {
		if d := <-got; d == nil || d.order.ID != "a" {
			t.Errorf("got %+v", d)
		}
	}
}

// Whoever takes one copy of a race waits until somebody takes the other: else there would be no race.
func TestRaceIsNotDeliveredToOneWorker(t *testing.T) {
	twin := message{Order{ID: "a"}, []fate{{}}}
	b := newBroker([][]message{{twin, twin}})
	first := make(chan *delivery)
	go func() { first <- b.next(t.Context()) }()
	select {
	case <-first:
		t.Fatal("it did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	if d := b.next(t.Context()); d == nil || <-first == nil {
		t.Error("together they got less than two")
	}
}

func TestBrokerStopsWithItsContext(t *testing.T) {
	b := newBroker([][]message{{{Order{ID: "a"}, []fate{{}}}}})
	b.next(t.Context()) // in somebody's hands: not acknowledged, nothing to deliver
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan *delivery)
	go func() { got <- b.next(ctx) }()
	cancel()
	if d := <-got; d != nil {
		t.Errorf("got %+v", d)
	}
}
