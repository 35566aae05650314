package brokers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
)

// lagOf returns the number of messages that a source has.
func lagOf(tb testing.TB, s broker.Source) int64 {
	tb.Helper()
	lag, err := s.(broker.Lagger).Lag(proof.Soon(tb))
	proof.Must(tb, err)
	if lag.Oldest != 0 {
		tb.Errorf("the oldest is %v old, and the service tells no age", lag.Oldest)
	}
	return lag.Messages
}

// Messages in flight and delayed ones are not done yet.
func TestServiceBusLagCountsWhatIsNotSettled(t *testing.T) {
	for _, sessions := range []bool{false, true} {
		t.Run(fmt.Sprint("sessions ", sessions), func(t *testing.T) {
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: sessions, LockDuration: time.Minute})
			want := func(what string, n, dead int64) {
				t.Helper()
				if got, letters := lagOf(t, p.source), lagOf(t, p.broker.DeadLetters(p.source)); got != n || letters != dead {
					t.Errorf("%s: %d messages and %d dead letters, want %d and %d", what, got, letters, n, dead)
				}
			}
			want("an empty queue", 0, 0)
			p.publish(t, p.messages(5, "key")...)
			want("nobody has received", 5, 0)
			s := openSession(t, p.source, 64)
			ds := receive(t, s, 3)
			want("three are in flight", 5, 0)
			proof.Must(t, s.Ack(proof.Soon(t), ds[:1]))
			want("one is handled", 4, 0)
			proof.Must(t, s.Reject(proof.Soon(t), ds[1:2], "broken"))
			want("one is a dead letter", 3, 1)
			if !sessions {
				proof.Must(t, s.Return(proof.Soon(t), ds[2:], time.Hour))
				want("one is delayed", 3, 1)
			}
		})
	}
}

func TestServiceBusLagOfASubscription(t *testing.T) {
	f := startServiceBus(t)
	f.CreateTopic("news", fakeamqp.QueueOptions{}, "billing", "audit")
	b := f.broker(t, false)
	publish(t, b.Publisher(), &broker.Message{ID: "1", Topic: "news"}, &broker.Message{ID: "2", Topic: "news"})
	billing := b.Subscription("news", "billing")
	s := openSession(t, billing, 10)
	ds := receive(t, s, 2)
	proof.Must(t, s.Ack(proof.Soon(t), ds[:1]))
	proof.Must(t, s.Reject(proof.Soon(t), ds[1:], "broken"))
	if n, dead, audit := lagOf(t, billing), lagOf(t, b.DeadLetters(billing)), lagOf(t, b.Subscription("news", "audit")); n != 0 || dead != 1 || audit != 2 {
		t.Errorf("billing has %d messages and %d dead letters, audit %d messages", n, dead, audit)
	}
}

// What the service does not tell is unknown, and not 0.
func TestServiceBusLagIsNotKnown(t *testing.T) {
	f := startServiceBus(t)
	p := f.place(t, fakeamqp.QueueOptions{})
	f.CreateTopic("news", fakeamqp.QueueOptions{}, "billing")
	p.publish(t, p.messages(1, "")...)
	queue, billing := p.source, p.broker.Subscription("news", "billing")
	publish(t, p.publisher, &broker.Message{ID: "1", Topic: "news"})
	unknown := func(why string, sources ...broker.Source) {
		t.Helper()
		for _, s := range sources {
			lag, err := s.(broker.Lagger).Lag(proof.Soon(t))
			if err == nil || lag != (broker.Lag{}) || !strings.Contains(err.Error(), why) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%s: %+v, %v, want %q", s.Name(), lag, err, why)
			}
		}
	}
	f.management.Mute = true
	unknown("has no count of messages", queue, billing, p.broker.DeadLetters(billing))
	f.management.Mute, f.management.Denies = false, true
	unknown("401 Unauthorized: the management client needs the right Manage", queue, billing, p.broker.DeadLetters(queue))
	f.management.Denies = false
	unknown("it does not exist", p.broker.Queue("gone"), p.broker.Subscription("news", "gone"), p.broker.DeadLetters(p.broker.Queue("gone")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if lag, err := queue.(broker.Lagger).Lag(ctx); err == nil {
		t.Errorf("after the end of its context: %+v", lag)
	}
	if n := lagOf(t, queue); n != 1 {
		t.Errorf("it has %d messages then", n)
	}
	mute := servicebusbroker.New(f.client, nil)
	for _, s := range []broker.Source{mute.Queue("q"), mute.Subscription("t", "s"), mute.DeadLetters(mute.Queue("q"))} {
		if _, ok := s.(broker.Lagger); ok {
			t.Errorf("%s has nobody to ask", s.Name())
		}
	}
}
