package membroker

import (
	"context"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

// source is a place to open sessions at.
type source struct {
	broker *Broker
	place  place
	name   string
	err    error // why it cannot be opened
}

var (
	_ broker.Located      = (*source)(nil)
	_ broker.Horizon      = (*source)(nil)
	_ broker.Lagger       = (*source)(nil)
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
)

// Name returns "membroker", the kind and the name of the place.
func (src *source) Name() string { return src.name }

// Location returns the Cluster of the broker.
func (src *source) Location(ctx context.Context) (map[string]string, error) {
	src.broker.mu.Lock()
	defer src.broker.mu.Unlock()
	if src.broker.down {
		return nil, errDown
	}
	return map[string]string{"cluster": src.broker.options.Cluster}, ctx.Err()
}

// RedeliveryHorizon returns the Retention of the broker.
func (src *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	return src.broker.options.Retention, ctx.Err()
}

// Lag counts what is not settled.
func (src *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	if src.err != nil {
		return lag, src.err
	}
	b := src.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return lag, errDown
	}
	for _, lane := range src.place.all() {
		for it := range lane.Items() {
			lag.Messages++
			lag.Oldest = max(lag.Oldest, time.Since(it.Value.stored))
		}
	}
	return lag, ctx.Err()
}

// Open begins to consume.
func (src *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if src.err != nil {
		return nil, src.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b := src.broker
	counter, err := desk.New[record](&b.mu, window)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errDown
	}
	s := &session{broker: b, place: src.place, desk: counter}
	b.open[s] = struct{}{}
	s.place.join(s)
	b.mu.Ring()
	return s.place.session(s), nil
}

// session hands out the messages in the lanes of its place.
type session struct {
	broker *Broker
	place  place
	desk   *desk.Desk[record]
}

// Receive waits for messages. While the window is full it waits until something is settled.
func (s *session) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	return s.desk.Receive(ctx, max, s)
}

// Lanes are those that the session takes from, without what was kept for too long.
func (s *session) Lanes() []*lane {
	lanes, keep, now := s.place.lanes(s), s.broker.options.Retention, time.Now()
	for _, l := range lanes {
		l.Expire(func(it *item) bool { return keep > 0 && now.Sub(it.Value.stored) > keep })
	}
	return lanes
}

// Await has nothing to do.
func (s *session) Await(ctx context.Context) { <-ctx.Done() }

// Deliver copies a message.
func (s *session) Deliver(l *lane, it *item) broker.Delivery {
	m := clone(it.Value.message)
	m.Attempt = it.Attempt
	at, origin := s.place.locate(it)
	return broker.Delivery{Message: m, Redelivered: it.Offset < l.Handed(), Position: at, Origin: origin}
}

// Ack settles messages for good. [Broker.LoseAcks] says when it does not.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.desk.Settle(ctx, ds, func(it *item) {
		if lost(&s.broker.lose.acks) {
			it.Return(time.Time{})
			return
		}
		it.Settle()
	})
}

// Return lets messages be delivered again, after the delay.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	var due time.Time
	if after > 0 {
		due = time.Now().Add(min(after, s.LongestDelay()))
	}
	return s.desk.Settle(ctx, ds, func(it *item) { it.Return(due) })
}

// Reject gives messages up.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.desk.Settle(ctx, ds, func(it *item) {
		it.Settle()
		s.place.reject(it.Value.message, reason, time.Now())
	})
}

// LongestDelay is a year.
func (s *session) LongestDelay() time.Duration { return 365 * 24 * time.Hour }

// KeepsRejected is true for a queue and false for a log.
func (s *session) KeepsRejected() bool { return s.place.keepsRejected() }

// Close ends the session, whether ctx has ended or not.
func (s *session) Close(context.Context) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if !s.desk.Close() {
		s.leave()
	}
	return nil
}

// breakOff is what becomes of a session when the broker fails. The caller holds the mutex.
func (s *session) breakOff() {
	s.desk.Fail(errBroken)
	s.leave()
}

// leave lets everything that is out come again. The caller holds the mutex.
func (s *session) leave() {
	delete(s.broker.open, s)
	s.place.leave(s)
	s.broker.mu.Ring()
}
