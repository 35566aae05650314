//go:build go1.25

package outbox_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// While nothing gets through, operators find the error, and no message is blamed
// for it.
func TestTheErrorOfAnOutageIsFound(t *testing.T) {
	inBubble(t, func(b *bench) {
		admin := outbox.Admin{Store: b.store}
		b.put(some(50, "m", "k")...)
		b.put(some(50, "n", "")...)
		stop := b.run(b.relay())
		defer stop()
		time.Sleep(time.Minute)
		if _, found, err := admin.LastFailure(b.Context()); found || err != nil {
			b.Errorf("there is a failure before the outage: %v", err)
		}

		down := errors.New("dial tcp 10.0.0.5:5672: connection refused")
		b.sender.set(func([]*broker.Message) error { return down }, nil)
		b.put(some(50, "o", "k")...)
		b.put(some(50, "p", "")...)
		time.Sleep(3 * time.Second)
		if _, found, _ := admin.LastFailure(b.Context()); found {
			b.Error("an outage of 3 seconds is stored")
		}
		for _, passed := range []time.Duration{20 * time.Second, time.Hour} {
			time.Sleep(passed)
			m, found, err := admin.LastFailure(b.Context())
			blamed := m.State != store.Pending || m.Attempts != 0
			if err != nil || !found || m.Reason != down.Error() || blamed || time.Since(m.Changed) > 2*time.Minute {
				b.Errorf("after %v, the last failure is %v of %s: %q, %v after %d attempts, changed %v ago: %v",
					passed, found, m.Message.ID, m.Reason, m.State, m.Attempts, time.Since(m.Changed), err)
			}
		}
		if waiting, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Pending, Limit: 1000}); len(waiting) != 100 {
			b.Errorf("%d messages wait, want 100: %v", len(waiting), err)
		}

		b.sender.set(nil, nil)
		time.Sleep(time.Minute)
		if m, found, err := admin.LastFailure(b.Context()); found || err != nil {
			b.Errorf("the outage is over, and the last failure is of %s: %q %v", m.Message.ID, m.Reason, err)
		}
		if n := len(b.sender.taken()); n != 200 {
			b.Errorf("%d messages were published, want 200", n)
		}
	})
}

// A person who parks the message with the error has the last word.
func TestTheErrorOfAnOutageUndoesNoDecision(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		b.put(some(3, "m", "k")...)
		stop := b.run(b.relay())
		defer stop()
		time.Sleep(30 * time.Second)
		admin := outbox.Admin{Store: b.store}
		m, found, err := admin.LastFailure(b.Context())
		if !found || err != nil {
			b.Fatalf("no failure is stored: %v", err)
		}
		q := store.OutgoingQuery{State: store.Pending, IDs: []string{m.Message.ID}}
		_, err = admin.Park(b.Context(), q, outbox.Decision{By: "ana", Reason: "a test"})
		b.must(err)
		time.Sleep(10 * time.Minute)
		stuck, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Stuck})
		if err != nil || len(stuck) != 1 || stuck[0].Message.ID != m.Message.ID {
			b.Errorf("%d messages are parked, want %s: %v", len(stuck), m.Message.ID, err)
		}
	})
}

// The broker is down, takes one message, and is down again. The messages of the
// batch that fails then are tried in ever smaller ones, which is one attempt.
func TestABatchThatFailsIsOneAttemptOfEachMessage(t *testing.T) {
	inBubble(t, func(b *bench) {
		var takes atomic.Int64
		b.sender.set(func([]*broker.Message) error {
			if takes.Add(-1) >= 0 {
				return nil
			}
			return errors.New("dial tcp 10.0.0.5:5672: connection refused")
		}, nil)
		b.put(some(9, "m", "")...)
		stop := b.run(b.relay())
		time.Sleep(5 * time.Second) // some have failed alone
		takes.Store(1)
		b.until("one is out", func() bool { return len(b.sender.taken()) == 1 })
		time.Sleep(100 * time.Millisecond)
		for _, state := range []store.OutgoingState{store.Pending, store.Held, store.Stuck} {
			ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: state, Limit: 100})
			b.must(err)
			for _, m := range ms {
				if m.Attempts > 1 {
					b.Errorf("%s is %v after %d attempts, and has failed in two outages", m.Message.ID, state, m.Attempts)
				}
			}
		}
		stop()
	})
}
