package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/nats-io/nats.go"
)

var errSettled = fmt.Errorf("natsbroker: %w", broker.ErrSettled)

// longestReason is the maximum length of a reason in a header, in bytes.
const longestReason = 1000

// Ack acknowledges messages to the server.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ctx, ds, "+ACK")
}

// Return returns messages. The server keeps to the delay, also across restarts.
// After a change of the leader it may be up to a second short, because the time
// is replicated in seconds.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	body := "-NAK"
	if after > 0 {
		body = fmt.Sprintf(`-NAK {"delay": %d}`, min(after, s.LongestDelay()))
	}
	return s.settle(ctx, ds, body)
}

// Reject terminates messages. If there is a dead-letter subject, it publishes
// them there first. A message without its dead letter is not terminated.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	reason = name.Line(strings.Join(strings.Fields(reason), " "), longestReason)
	ds, err := s.publishDeadLetters(ctx, ds, reason)
	if len(ds) == 0 {
		return err
	}
	return errors.Join(err, s.settle(ctx, ds, strings.TrimSpace("+TERM "+reason)))
}

// LongestDelay returns a year. The server has no limit.
func (s *session) LongestDelay() time.Duration { return 365 * 24 * time.Hour }

// KeepsRejected reports whether there is a dead-letter subject.
func (s *session) KeepsRejected() bool { return s.options.DeadLetter != "" }

// publishDeadLetters publishes dead letters, and returns the deliveries that have
// theirs, perhaps from an earlier try. It releases the others.
func (s *session) publishDeadLetters(ctx context.Context, ds []broker.Delivery, reason string) (stored []broker.Delivery, err error) {
	if s.options.DeadLetter == "" {
		return ds, nil
	}
	s.mu.Lock()
	as, err := s.find(ds)
	as = slices.DeleteFunc(as, func(a *arrival) bool { return a.dead })
	letters := make([]*nats.Msg, len(as))
	for i, a := range as {
		letters[i] = deadLetter(a.msg, s.options.DeadLetter, reason, s.origin(a))
	}
	s.mu.Unlock()
	errs := s.requester.publish(ctx, letters)
	if failed := errors.Join(errs...); failed != nil {
		err = errors.Join(err, fmt.Errorf("natsbroker: publish dead letters to %q: %w", s.options.DeadLetter, failed))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, a := range as {
		a.dead, a.released = errs[i] == nil, errs[i] != nil
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && a.dead {
			stored = append(stored, d)
		}
	}
	return stored, err
}

// find returns the arrivals of unsettled deliveries. The mutex is held.
func (s *session) find(ds []broker.Delivery) (as []*arrival, err error) {
	if s.broken != nil {
		return nil, fmt.Errorf("natsbroker: the session has ended, and its deliveries come again: %w", s.broken)
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && s.unsettled.has(a) {
			as = append(as, a)
		} else {
			err = errSettled
		}
	}
	return as, err
}

// release lets deliveries be delivered again after AckWait.
func (s *session) release(ds []broker.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	as, _ := s.find(ds) // the others have left the window
	s.unsettled.release(as)
}

// settle settles deliveries with the server and removes them from the window.
// After an error, some of them are delivered again after AckWait, because their
// deadlines are no longer extended.
func (s *session) settle(ctx context.Context, ds []broker.Delivery, command string) error {
	if err := s.identify(ctx); err != nil {
		s.release(ds) // nothing was sent, so the caller may try again until then
		return err
	}
	s.mu.Lock()
	as, err := s.find(ds)
	s.unsettled.settle(as)
	s.wakeReceive()
	s.mu.Unlock()
	if len(as) == 0 {
		return err
	}
	return errors.Join(err, s.sendSettlement(ctx, as, command))
}
