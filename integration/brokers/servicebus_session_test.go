package brokers_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
)

func settled(tb testing.TB, p *serviceBusPlace) {
	tb.Helper()
	proof.Await(tb, "the queue is empty", func() bool { return p.Len(p.queue) == 0 })
}

func TestServiceBusSlowHandlerKeepsItsMessage(t *testing.T) {
	for _, sessions := range []bool{false, true} {
		t.Run(fmt.Sprint("sessions ", sessions), func(t *testing.T) {
			t.Parallel()
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: sessions, LockDuration: 500 * time.Millisecond})
			slow := openSession(t, p.source, 10)
			p.publish(t, p.messages(1, "key")...)
			ds := receive(t, slow, 1)
			receiveNothing(t, openSession(t, p.source, 10), 1500*time.Millisecond)
			proof.Must(t, slow.Ack(proof.Soon(t), ds))
			settled(t, p)
		})
	}
}

// ackBriefly limits the time of an ack that finds its link gone, after which the
// client waits for four seconds before it tries again.
func ackBriefly(tb testing.TB, s broker.Session, ds []broker.Delivery) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 500*time.Millisecond)
	defer cancel()
	return s.Ack(ctx, ds)
}

func TestServiceBusLostLockIsNotSettled(t *testing.T) {
	for _, sessions := range []bool{false, true} {
		t.Run(fmt.Sprint("sessions ", sessions), func(t *testing.T) {
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: sessions, LockDuration: time.Minute})
			s := openSession(t, p.source, 10)
			p.publish(t, p.messages(1, "key")...)
			lost := receive(t, s, 1)
			p.TakeLocks(p.queue)
			again := receive(t, s, 1)
			if err := ackBriefly(t, s, lost); err == nil {
				t.Fatal("a message was acked whose lock was lost")
			}
			if p.Len(p.queue) != 1 {
				t.Fatal("the message is gone")
			}
			if !again[0].Redelivered || again[0].Message.Attempt != 2 {
				t.Fatalf("redelivered: %v, attempt %d", again[0].Redelivered, again[0].Message.Attempt)
			}
			proof.Must(t, s.Ack(proof.Soon(t), again))
			settled(t, p)
		})
	}
}

// The client takes a link for sound that was detached with some conditions, and
// never replaces it. The session then ends, so that its consumer opens another.
func TestServiceBusDetachedQueueIsReadAgain(t *testing.T) {
	for _, condition := range []string{"amqp:link:detach-forced", "com.microsoft:server-busy"} {
		t.Run(condition, func(t *testing.T) {
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{LockDuration: time.Minute})
			s := openSession(t, p.source, 10)
			p.publish(t, p.messages(1, "a")...)
			proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, 1)))
			p.DetachReceivers(p.queue, condition)
			p.publish(t, p.messages(1, "b")...)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			ds, err := s.Receive(ctx, 1)
			if err != nil && ctx.Err() == nil {
				_ = s.Close(ctx) // it tells of the detached link again
				s = openSession(t, p.source, 10)
				ds, err = s.Receive(ctx, 1)
			}
			proof.Must(t, err)
			proof.Must(t, s.Ack(proof.Soon(t), ds))
			settled(t, p)
		})
	}
}

// A session that is closed continues in another process with its first unsettled
// message, and what it has settled does not come again.
func TestServiceBusSessionMoves(t *testing.T) {
	p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: true, LockDuration: time.Minute})
	first := openSession(t, p.source, 64)
	p.publish(t, p.messages(6, "key")...)
	ds := receive(t, first, 6)
	proof.Must(t, first.Ack(proof.Soon(t), ds[:1]))
	proof.Must(t, first.Ack(proof.Soon(t), ds[2:3])) // the second one is still being handled
	second := openSession(t, servicebusElsewhere(t, p), 64)
	receiveNothing(t, second, 200*time.Millisecond)
	proof.Must(t, first.Close(proof.Soon(t)))
	for i, want := range []string{"1", "3", "4", "5"} {
		d := receive(t, second, 1)
		if got := string(d[0].Message.Body); got != want || !d[0].Redelivered {
			t.Fatalf("delivery %d is message %s, redelivered: %v; want %s, redelivered", i, got, d[0].Redelivered, want)
		}
		if d[0].Message.Attempt == 1 { // a consumer would not count it, and a message that kills it would come for ever
			t.Fatalf("message %s, which was delivered before, is at its first attempt", want)
		}
		proof.Must(t, second.Ack(proof.Soon(t), d))
	}
	settled(t, p)
}

// servicebusElsewhere returns the source of a place over a connection of its own.
func servicebusElsewhere(tb testing.TB, p *serviceBusPlace) broker.Source {
	other := &fakeServiceBus{Server: p.Server, client: p.connect(tb), management: p.management}
	return other.broker(tb, true).Queue(p.queue)
}

// A session that another process has taken is let go once that shows, and not held
// for ever for a message that can be settled no more.
func TestServiceBusTakenSessionIsLetGo(t *testing.T) {
	p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: true, LockDuration: time.Minute})
	first := openSession(t, p.source, 1) // it has no room to receive, and so does not see that its link ends
	ms := p.messages(2, "key")
	p.publish(t, ms[0])
	lost := receive(t, first, 1)
	second := openSession(t, servicebusElsewhere(t, p), 1)
	p.TakeLocks(p.queue)
	taken := receive(t, second, 1)
	if err := ackBriefly(t, first, lost); err == nil {
		t.Fatal("a message was acked that another process has")
	}
	proof.Must(t, second.Ack(proof.Soon(t), taken))
	proof.Must(t, second.Close(proof.Soon(t)))
	p.publish(t, ms[1])
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ds, err := first.Receive(ctx, 1)
	if err != nil || ds[0].Message.ID != ms[1].ID {
		t.Fatalf("after the session was taken: %v, %v", ds, err)
	}
	proof.Must(t, first.Ack(proof.Soon(t), ds))
	settled(t, p)
}

// The client locks a lost session again without a word when it renews the lock. If
// its messages then come again on the same receiver, it is given back, so that a
// late ack of a lost delivery does not disturb them.
func TestServiceBusSessionThatWasLockedAgainIsGivenBack(t *testing.T) {
	f := startServiceBus(t)
	p := f.place(t, fakeamqp.QueueOptions{Sessions: true, LockDuration: 500 * time.Millisecond})
	b := servicebusbroker.New(f.client, &servicebusbroker.Options{Sessions: true, MaxSessions: 2})
	s := openSession(t, b.Queue(p.queue), 3) // two sessions, which share one more place
	p.publish(t, p.messages(2, "other")...)
	others := receive(t, s, 2)
	p.publish(t, p.messages(1, "key")...)
	lost := receive(t, s, 1)
	f.TakeSession(p.queue, "key") // nothing is received from it now, because the window is full
	proof.Await(t, "the client has locked it again", func() bool { return f.IsLocked(p.queue, "key") })
	proof.Must(t, s.Ack(proof.Soon(t), others))
	again := receive(t, s, 1)
	if again[0].Message.ID != lost[0].Message.ID || !again[0].Redelivered {
		t.Fatalf("%s came, redelivered: %v", again[0].Origin, again[0].Redelivered)
	}
	if ackBriefly(t, s, lost) == nil {
		t.Fatal("a message was acked whose lock was lost")
	}
	proof.Must(t, s.Ack(proof.Soon(t), again))
	settled(t, p)
}

// Sessions with messages have their turn although others never end.
func TestServiceBusSessionsTakeTurns(t *testing.T) {
	p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: true, LockDuration: time.Minute})
	s := openSession(t, p.source, 1) // one session of Service Bus at a time
	p.publish(t, p.messages(3, "a")...)
	p.publish(t, p.messages(3, "b")...)
	var got string
	for range 6 {
		d := receive(t, s, 1)
		got += d[0].Message.OrderingKey + string(d[0].Message.Body) + " "
		proof.Must(t, s.Ack(proof.Soon(t), d))
	}
	// The service says which of the two comes first.
	if got != "a0 a1 a2 b0 b1 b2 " && got != "b0 b1 b2 a0 a1 a2 " {
		t.Fatalf("got %s", got)
	}
}

func TestServiceBusDetectsDuplicates(t *testing.T) {
	for _, partitioned := range []bool{false, true} {
		t.Run(fmt.Sprint("partitioned ", partitioned), func(t *testing.T) {
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{DedupWindow: time.Minute, Partitioned: partitioned})
			ms := append(p.messages(3, ""), p.messages(3, "key")...)
			p.publish(t, ms...)
			p.publish(t, ms[1:2]...) // alone, and in other batches
			p.publish(t, ms[2], ms[4], ms[5], ms[0])
			if n := p.Len(p.queue); n != len(ms) {
				t.Fatalf("%d messages are stored, want %d", n, len(ms))
			}
			p.Advance(2 * time.Minute)
			p.publish(t, ms[0])
			if n := p.Len(p.queue); n != len(ms)+1 {
				t.Fatalf("after the window, %d messages are stored, want %d", n, len(ms)+1)
			}
		})
	}
}

// The client sends again what was stored and not answered. Duplicate detection
// keeps one, if it is on.
func TestServiceBusUnansweredPublish(t *testing.T) {
	for want, window := range map[int]time.Duration{1: time.Minute, 2: 0} {
		f := startServiceBus(t)
		p := f.place(t, fakeamqp.QueueOptions{DedupWindow: window})
		var sends atomic.Int64
		f.OnTransfer = func(string) (bool, bool) { return true, sends.Add(1) > 1 }
		p.publish(t, p.messages(1, "")...)
		if n := p.Len(p.queue); n != want {
			t.Errorf("window %v: %d messages are stored, want %d", window, n, want)
		}
	}
}

// An ack whose answer is lost is either an error or done, and the message is
// handled twice at most.
func TestServiceBusUnansweredAck(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			f := startServiceBus(t)
			p := f.place(t, fakeamqp.QueueOptions{Sessions: true})
			var settles atomic.Int64
			f.OnDisposition = func(_, outcome string) (bool, bool) {
				lost := outcome == "completed" && settles.Add(1) == 1
				return !lost || applied, !lost
			}
			s := openSession(t, p.source, 10)
			p.publish(t, p.messages(2, "key")...)
			ds := receive(t, s, 1)
			err := ackBriefly(t, s, ds)
			for p.Len(p.queue) > 0 { // a session that finds the connection gone ends
				proof.Must(t, s.Close(proof.Soon(t)))
				s = openSession(t, p.source, 10)
				again, broken := s.Receive(proof.Soon(t), 1)
				if broken != nil {
					continue
				}
				if err == nil && again[0].Message.ID == ds[0].Message.ID {
					t.Fatal("an acked message has come again")
				}
				proof.Must(t, s.Ack(proof.Soon(t), again))
			}
		})
	}
}

func TestServiceBusDelaysWithScheduledCopies(t *testing.T) {
	p := startServiceBus(t).place(t, fakeamqp.QueueOptions{DedupWindow: time.Hour})
	s := openSession(t, p.source, 10)
	ms := p.messages(1, "key")
	ms[0].Header = map[string]string{"a": "b"}
	p.publish(t, ms...)
	proof.Must(t, s.Return(proof.Soon(t), receive(t, s, 1), time.Hour))
	receiveNothing(t, s, 100*time.Millisecond)
	if p.Len(p.queue) != 1 {
		t.Fatal("the copy is not there")
	}
	p.Advance(2 * time.Hour)
	d := receive(t, s, 1)[0]
	if m := d.Message; m.ID != ms[0].ID || m.OrderingKey != "key" || m.Header["a"] != "b" || len(m.Header) != 1 || m.Attempt != 2 || !d.Redelivered {
		t.Fatalf("after a delay: %+v, redelivered: %v", m, d.Redelivered)
	}
	proof.Must(t, s.Ack(proof.Soon(t), []broker.Delivery{d}))
	settled(t, p)
}

// A dead letter has the reason and a description, and is replayed with its ID,
// also while duplicate detection remembers it.
func TestServiceBusReplaysDeadLetters(t *testing.T) {
	for _, sessions := range []bool{false, true} {
		t.Run(fmt.Sprint("sessions ", sessions), func(t *testing.T) {
			p := startServiceBus(t).place(t, fakeamqp.QueueOptions{Sessions: sessions, DedupWindow: time.Hour})
			s := openSession(t, p.source, 10)
			ms := p.messages(1, "key")
			p.publish(t, ms...)
			proof.Must(t, s.Reject(proof.Soon(t), receive(t, s, 1), "no such\ncustomer"))
			if p.Len(p.queue+"/$DeadLetterQueue") != 1 {
				t.Fatal("a rejected message is gone")
			}
			letters := openSession(t, p.broker.DeadLetters(p.source), 10)
			dead := receive(t, letters, 1)
			h := dead[0].Message.Header
			if h["once-reason"] != "no such customer" || h["once-description"] == "" || !dead[0].Redelivered {
				t.Fatalf("the dead letter has %q, redelivered: %v", h, dead[0].Redelivered)
			}
			proof.Must(t, letters.Close(proof.Soon(t)))
			n, err := p.broker.Replay(proof.Soon(t), p.source, 10)
			proof.Must(t, err)
			if p.Len(p.queue) != 1 {
				t.Fatal("a replayed message is gone")
			}
			again := receive(t, s, 1)
			if m := again[0].Message; n != 1 || m.ID != ms[0].ID || m.OrderingKey != "key" || len(m.Header) != 0 || !again[0].Redelivered {
				t.Fatalf("replayed %d: %+v, redelivered: %v", n, m, again[0].Redelivered)
			}
			if left := p.Len(p.queue + "/$DeadLetterQueue"); left != 0 {
				t.Fatalf("%d dead letters are left", left)
			}
		})
	}
}

// Dead letters of two subscriptions may have the same number, and none is taken for
// a duplicate of the other.
func TestServiceBusReplaysOfSubscriptionsAreNoDuplicates(t *testing.T) {
	f := startServiceBus(t)
	f.CreateTopic("orders", fakeamqp.QueueOptions{DedupWindow: time.Hour}, "billing", "audit")
	b := f.broker(t, false)
	p := b.Publisher()
	defer p.Close()
	publish(t, p, &broker.Message{ID: "1", Topic: "orders"}, &broker.Message{ID: "2", Topic: "orders"})
	for name, rejected := range map[string]string{"billing": "1", "audit": "2"} {
		s := openSession(t, b.Subscription("orders", name), 10)
		for _, d := range receive(t, s, 2) {
			if d.Message.ID == rejected {
				proof.Must(t, s.Reject(proof.Soon(t), []broker.Delivery{d}, "no"))
			} else {
				proof.Must(t, s.Ack(proof.Soon(t), []broker.Delivery{d}))
			}
		}
		proof.Must(t, s.Close(proof.Soon(t)))
	}
	for _, name := range []string{"billing", "audit"} {
		n, err := b.Replay(proof.Soon(t), b.Subscription("orders", name), 1)
		if n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for _, name := range []string{"billing", "audit"} {
		if n := f.Len("orders/Subscriptions/" + name); n != 2 {
			t.Errorf("%s has %d messages, want both that were replayed", name, n)
		}
	}
}

func TestServiceBusTopicReachesEachSubscription(t *testing.T) {
	f := startServiceBus(t)
	f.CreateTopic("orders", fakeamqp.QueueOptions{Sessions: true}, "billing", "audit")
	b := f.broker(t, true)
	p := b.Publisher()
	defer p.Close()
	publish(t, p, &broker.Message{ID: "1", Topic: "orders", OrderingKey: "key"})
	for _, name := range []string{"billing", "audit"} {
		d := receive(t, openSession(t, b.Subscription("orders", name), 1), 1)
		if m := d[0].Message; m.ID != "1" || m.Topic != "orders" {
			t.Errorf("%s has received %+v", name, m)
		}
	}
}

// The fields that other programs read.
func TestServiceBusSetsTheFieldsOfTheService(t *testing.T) {
	f := startServiceBus(t)
	p := f.place(t, fakeamqp.QueueOptions{})
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	p.publish(t, &broker.Message{ID: "1", Topic: p.queue, OrderingKey: "Key", Header: map[string]string{
		"correlation-id": "c", "content-type": "text/plain", "traceparent": trace}})
	raw, err := f.client.NewReceiverForQueue(p.queue, nil)
	proof.Must(t, err)
	defer raw.Close(proof.Soon(t))
	ms, err := raw.PeekMessages(proof.Soon(t), 1, nil)
	proof.Must(t, err)
	m := ms[0]
	if m.MessageID != "1" || *m.SessionID != "Key" || *m.CorrelationID != "c" || *m.ContentType != "text/plain" ||
		m.ApplicationProperties["traceparent"] != trace || m.ApplicationProperties["Diagnostic-Id"] != trace {
		t.Errorf("%+v", m)
	}
	if key := m.ApplicationProperties["once-ordering-key"]; key != "Key" { // the service may change the case of a session's name
		t.Errorf("the key is kept as %v", key)
	}
}
