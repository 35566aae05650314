package brokers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go/jetstream"
)

// A log of NATS keeps the case about its lag. Most others are about sources that
// keep a place.
func TestNATSLogLagConformance(t *testing.T) {
	js := dialNATS(t, offices.StartNATS(t))
	h := brokertest.Harness{Patience: proof.Patience, Fresh: func(tb testing.TB) brokertest.Place {
		p := newNATSPlace(tb, js, nil)
		return brokertest.Place{Publisher: p.Publisher(), Source: p.Log(p.stream, "readers"), Topic: p.topic, Log: true}
	}}
	for _, c := range brokertest.Cases(h) {
		if c.Name != "source/lag-from" {
			continue
		}
		if skipped, err := c.Check(t); err != nil || skipped != "" {
			t.Errorf("%v %s\nthe rule: %s", err, skipped, c.Rule)
		}
	}
}

func TestNATSLogLag(t *testing.T) {
	t.Run("one server", func(t *testing.T) {
		js := dialNATS(t, offices.StartNATS(t))
		natsLogLag(t, js, newNATSPlace(t, js, nil))
	})
	t.Run("three", func(t *testing.T) {
		t.Parallel() // most of it is waiting for the servers to find each other
		js := dialNATS(t, startNATSCluster(t)...)
		natsLogLag(t, js, newNATSPlace(t, js, nil, natsReplicated))
	})
}

func natsLogLag(t *testing.T, js jetstream.JetStream, p *natsPlace) {
	t.Helper()
	log := ""
	position := func(offset int64) map[string]broker.Position {
		return map[string]broker.Position{p.stream: {Log: log, Partition: p.stream, Offset: offset}, "another": {Log: "another#1", Partition: "another", Offset: 1 << 40}}
	}
	// lag counts without filters, with one, with two, and with one that matches nothing.
	lag := func(offset int64) string {
		t.Helper()
		text := ""
		for _, filters := range [][]string{nil, {p.topic}, {p.topic, p.stream + ".other"}, {p.stream + ".none"}} {
			lag, err := natsbroker.New(js, nil).Log(p.stream, "readers", filters...).(broker.LogLagger).LagFrom(natsContext(t), position(offset))
			proof.Must(t, err)
			if (lag.Messages > 0) != (lag.Oldest > 0) || lag.Oldest > time.Minute {
				t.Errorf("%d messages, the oldest %v old", lag.Messages, lag.Oldest)
			}
			text += fmt.Sprint(lag.Messages, " ")
		}
		return text
	}
	want := func(what string, offset int64, want string) {
		t.Helper()
		if got := lag(offset); got != want {
			t.Errorf("%s: after %d there are %s, want %s", what, offset, got, want)
		}
	}
	publish(t, p.Publisher(), p.messages(10)...) // 1 to 10
	others := []*broker.Message{{ID: "a", Topic: p.stream + ".other"}, {ID: "b", Topic: p.stream + ".third"}}
	publish(t, p.Publisher(), others...)
	stream, err := js.Stream(natsContext(t), p.stream)
	proof.Must(t, err)
	log = p.stream + "#" + stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
	want("12 messages", -1, "12 10 11 0 ")
	want("12 messages", 0, "12 10 11 0 ")
	want("12 messages", 4, "8 6 7 0 ")
	want("12 messages", 10, "2 0 1 0 ")
	want("12 messages", 12, "0 0 0 0 ")
	for _, seq := range []uint64{6, 8, 11} {
		proof.Must(t, stream.DeleteMsg(natsContext(t), seq))
	}
	want("deleted in between", 0, "9 8 8 0 ")
	want("deleted in between", 5, "4 3 3 0 ")
	want("deleted in between", 6, "4 3 3 0 ")
	proof.Must(t, stream.Purge(natsContext(t), jetstream.WithPurgeSequence(8)))
	want("its limits have removed seven", 2, "3 2 2 0 ")
	want("its limits have removed seven", 9, "2 1 1 0 ")
	names := stream.ConsumerNames(natsContext(t))
	for name := range names.Name() {
		if name != "billing" {
			t.Errorf("the consumer %s is left", name)
		}
	}
	proof.Must(t, names.Err())
	proof.Must(t, stream.Purge(natsContext(t)))
	want("it is empty", 3, "0 0 0 0 ")
	want("it is empty", 12, "0 0 0 0 ")
	fails := func(what string, offset int64) {
		t.Helper()
		for _, filters := range [][]string{nil, {p.topic}} {
			lag, err := p.Log(p.stream, "readers", filters...).(broker.LogLagger).LagFrom(natsContext(t), position(offset))
			if !errors.Is(err, broker.ErrInvalid) || lag != (broker.Lag{}) {
				t.Errorf("%s: %+v, %v", what, lag, err)
			}
		}
	}
	fails("a position after the end", 13)
	proof.Must(t, js.DeleteStream(natsContext(t), p.stream))
	p.create(t)
	publish(t, p.Publisher(), p.messages(20)...)
	fails("a position in a stream that was recreated", 3)
	proof.Must(t, js.DeleteStream(natsContext(t), p.stream))
	if lag, err := p.Log(p.stream, "readers").(broker.LogLagger).LagFrom(natsContext(t), nil); err == nil {
		t.Errorf("without a stream: %+v", lag)
	}
}
