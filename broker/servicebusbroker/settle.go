package servicebusbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
)

const (
	longestReason = 1000 // bytes; Service Bus accepts 4,096 characters
	longestDelay  = 7 * 24 * time.Hour
)

var errEnded = errors.New("the session has ended, and its deliveries come again")

// Ack completes messages, and waits for the answers.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ds, func(a *arrival) error { return a.from.CompleteMessage(ctx, a.raw, nil) })
}

// Return abandons messages, which come again at once. It ignores the delay.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, _ time.Duration) error {
	return s.settle(ds, func(a *arrival) error {
		s.mayComeAgain(a)
		return a.from.AbandonMessage(ctx, a.raw, nil)
	})
}

// mayComeAgain notes that a message of a held session may come again on its link.
func (s *session) mayComeAgain(a *arrival) {
	if a.held == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.held.returned[sequence(a.raw)] = true
}

// Reject moves messages to the dead letters. Those of the dead letters are removed.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.dead {
		return s.Ack(ctx, ds)
	}
	reason = name.Line(strings.Join(strings.Fields(reason), " "), longestReason)
	return s.settle(ds, func(a *arrival) error {
		description := fmt.Sprintf("rejected by a consumer of %s at delivery %d", s.Name(), attempts(a.raw))
		return a.from.DeadLetterMessage(ctx, a.raw, &azservicebus.DeadLetterOptions{Reason: &reason, ErrorDescription: &description})
	})
}

// KeepsRejected reports whether rejected messages become dead letters, as all do
// that are not dead letters themselves.
func (s *session) KeepsRejected() bool { return !s.dead }

// settle settles deliveries with the service. After an error they stay in the
// window and may be settled again, unless their locks are lost. A session of
// Service Bus is let go after any error: the client may have tried in vain to lock
// it again, or have done so without a word, and a message that is never settled
// would hold it for ever.
func (s *session) settle(ds []broker.Delivery, do func(*arrival) error) error {
	as, err := s.find(ds)
	errs := each(as, do)
	s.mu.Lock()
	for i, a := range as {
		if errs[i] == nil || isLost(errs[i]) {
			s.drop(a)
		}
	}
	s.mu.Unlock()
	for i, a := range as {
		if errs[i] != nil && a.held != nil {
			s.lose(a.held)
		}
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return s.explain("settle", err)
	}
	return nil
}

// find returns the messages of unsettled deliveries.
func (s *session) find(ds []broker.Delivery) (as []*arrival, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, errEnded
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && s.all[a] {
			as = append(as, a)
		} else {
			err = broker.ErrSettled
		}
	}
	return as, err
}

// delayingSession is a session of a queue without sessions of Service Bus, which
// can delay a message without changing an order or reaching other subscriptions.
type delayingSession struct{ *session }

var _ broker.Delayer = (*delayingSession)(nil)

// LongestDelay returns a week.
func (d *delayingSession) LongestDelay() time.Duration { return longestDelay }

// Return abandons messages, or schedules copies for after a delay and then
// completes the messages. If it fails between the two, both come.
func (d *delayingSession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	if after <= 0 {
		return d.session.Return(ctx, ds, 0)
	}
	sender, err := d.broker.client.NewSender(d.entity, nil)
	if err != nil {
		return d.explain("return", err)
	}
	due := time.Now().Add(min(after, longestDelay))
	err = d.settle(ds, func(a *arrival) error {
		copied := []*azservicebus.Message{replacement(a.raw, d.source)}
		if _, err := sender.ScheduleMessages(ctx, copied, due, nil); err != nil {
			return err
		}
		return a.from.CompleteMessage(ctx, a.raw, nil)
	})
	return errors.Join(err, sender.Close(ctx))
}
