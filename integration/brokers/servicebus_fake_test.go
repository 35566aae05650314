package brokers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakeamqp"
)

// These hold what the tests of servicebusbroker lean on in the imitation of
// Service Bus, as the vendor documents it.

// one receives one message.
func one(tb testing.TB, r interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
}) *azservicebus.ReceivedMessage {
	tb.Helper()
	for {
		ms, err := r.ReceiveMessages(proof.Soon(tb), 1, nil)
		proof.Must(tb, err)
		if len(ms) > 0 { // a link that was lost gives nothing, once
			return ms[0]
		}
	}
}

func sendRaw(tb testing.TB, f *fakeServiceBus, queue string, ms ...*azservicebus.Message) {
	tb.Helper()
	s, err := f.client.NewSender(queue, nil)
	proof.Must(tb, err)
	defer s.Close(proof.Soon(tb))
	for _, m := range ms {
		proof.Must(tb, s.SendMessage(proof.Soon(tb), m, nil))
	}
}

func hasCode(err error, code azservicebus.Code) bool {
	var e *azservicebus.Error
	return errors.As(err, &e) && e.Code == code
}

func TestFakeServiceBusLocksEndByTheClock(t *testing.T) {
	f := startServiceBus(t)
	f.CreateQueue("q", fakeamqp.QueueOptions{LockDuration: time.Minute, MaxDelivery: 3})
	sendRaw(t, f, "q", &azservicebus.Message{Body: []byte("a")})
	r, err := f.client.NewReceiverForQueue("q", nil)
	proof.Must(t, err)
	m := one(t, r)
	f.Advance(30 * time.Second)
	proof.Must(t, r.RenewMessageLock(proof.Soon(t), m, nil))
	f.Advance(50 * time.Second)
	proof.Must(t, r.AbandonMessage(proof.Soon(t), m, nil)) // it was renewed
	if m = one(t, r); m.DeliveryCount != 2 {
		t.Fatalf("delivery %d after one was abandoned", m.DeliveryCount)
	}
	f.Advance(61 * time.Second)
	if err := r.CompleteMessage(proof.Soon(t), m, nil); !hasCode(err, azservicebus.CodeLockLost) {
		t.Fatalf("completed after the lock: %v", err)
	}
	if m = one(t, r); m.DeliveryCount != 3 {
		t.Fatalf("delivery %d after a lock ended", m.DeliveryCount)
	}
	proof.Must(t, f.Restart())
	f.Advance(61 * time.Second)
	if f.Len("q") != 0 || f.Len("q/$DeadLetterQueue") != 1 {
		t.Fatal("the last delivery does not dead-letter the message")
	}
}

// A session that is closed counts no delivery, one whose lock ends does.
func TestFakeServiceBusSessions(t *testing.T) {
	f := startServiceBus(t)
	f.CreateQueue("q", fakeamqp.QueueOptions{Sessions: true, LockDuration: time.Minute})
	id, ctx := "s", proof.Soon(t)
	sender, err := f.client.NewSender("q", nil)
	proof.Must(t, err)
	if sender.SendMessage(ctx, &azservicebus.Message{Body: []byte("a")}, nil) == nil {
		t.Fatal("a message without a session was accepted")
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := f.client.AcceptNextSessionForQueue(ctx, "q", nil)
		accepted <- err
	}()
	proof.Await(t, "an accept without a session ends", func() bool {
		f.Advance(time.Minute)
		select {
		case err := <-accepted:
			return hasCode(err, azservicebus.CodeTimeout)
		default:
			return false
		}
	})
	sendRaw(t, f, "q", &azservicebus.Message{SessionID: &id, Body: []byte("a")})
	for i, want := range []uint32{1, 1, 2} {
		r, err := f.client.AcceptNextSessionForQueue(ctx, "q", nil)
		proof.Must(t, err)
		if m := one(t, r); m.DeliveryCount != want {
			t.Fatalf("acceptance %d: delivery %d, want %d", i, m.DeliveryCount, want)
		}
		if _, err := f.client.AcceptSessionForQueue(ctx, "q", id, nil); err == nil {
			t.Fatal("a session was accepted twice")
		}
		state, err := r.GetSessionState(ctx, nil)
		proof.Must(t, err)
		if string(state) != string(make([]byte, i)) {
			t.Fatalf("the state is %q", state)
		}
		proof.Must(t, r.SetSessionState(ctx, make([]byte, i+1), nil))
		if i == 1 {
			f.Advance(61 * time.Second)
		}
		_ = r.Close(ctx) // after its lock has ended, it has an error
	}
}

func TestFakeServiceBusSchedules(t *testing.T) {
	f := startServiceBus(t)
	f.CreateQueue("q", fakeamqp.QueueOptions{})
	s, err := f.client.NewSender("q", nil)
	proof.Must(t, err)
	ms := []*azservicebus.Message{{Body: []byte("later")}, {Body: []byte("never")}}
	numbers, err := s.ScheduleMessages(proof.Soon(t), ms, time.Now().Add(time.Hour), nil)
	proof.Must(t, err)
	proof.Must(t, s.CancelScheduledMessages(proof.Soon(t), numbers[1:], nil))
	r, err := f.client.NewReceiverForQueue("q", nil)
	proof.Must(t, err)
	seen, err := r.PeekMessages(proof.Soon(t), 10, nil)
	proof.Must(t, err)
	if len(seen) != 1 || seen[0].State != azservicebus.MessageStateScheduled {
		t.Fatalf("%d messages are scheduled", len(seen))
	}
	f.Advance(2 * time.Hour)
	if m := one(t, r); string(m.Body) != "later" {
		t.Fatalf("%s has come", m.Body)
	}
}
