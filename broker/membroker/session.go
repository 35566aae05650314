package membroker

import (
	"context"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// source opens sessions of a place.
type source struct {
	broker *Broker
	place  place
	name   string
	err    error // why Open fails
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

// Lag counts unsettled messages.
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
	for _, buffer := range src.place.all() {
		for it := range buffer.Items() {
			lag.Messages++
			lag.Oldest = max(lag.Oldest, time.Since(it.Value.stored))
		}
	}
	return lag, ctx.Err()
}

// Open opens a session.
func (src *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if src.err != nil {
		return nil, src.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b := src.broker
	tracker, err := inflight.NewTracker[record](&b.mu, window)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errDown
	}
	s := &session{broker: b, place: src.place, tracker: tracker}
	b.open[s] = struct{}{}
	s.place.join(s)
	b.mu.Broadcast()
	return s.place.session(s), nil
}

// session delivers the messages in the buffers of its place.
type session struct {
	broker  *Broker
	place   place
	tracker *inflight.Tracker[record]
}

// Receive waits for messages. While the window is full, it waits until a message
// is settled.
func (s *session) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	return s.tracker.Receive(ctx, max, s)
}

// Buffers returns the buffers that the session takes from. It removes messages
// that are too old.
func (s *session) Buffers() []*buffer {
	buffers, keep, now := s.place.buffers(s), s.broker.options.Retention, time.Now()
	for _, l := range buffers {
		l.Expire(func(it *item) bool { return keep > 0 && now.Sub(it.Value.stored) > keep })
	}
	return buffers
}

// Fetch waits, because publishers add the messages.
func (s *session) Fetch(ctx context.Context) { <-ctx.Done() }

// NewDelivery copies a message.
func (s *session) NewDelivery(l *buffer, it *item) broker.Delivery {
	m := clone(it.Value.message)
	m.Attempt = it.Attempt
	at, origin := s.place.locate(it)
	return broker.Delivery{Message: m, Redelivered: it.Offset < l.Delivered(), Position: at, Origin: origin}
}

// Ack settles messages, unless [Broker.LoseAcks] is in effect.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.tracker.Settle(ctx, ds, func(it *item) {
		if lost(&s.broker.lose.acks) {
			it.Return(time.Time{})
			return
		}
		it.Settle()
	})
}

// Return lets messages be delivered again after the delay.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	var due time.Time
	if after > 0 {
		due = time.Now().Add(min(after, s.LongestDelay()))
	}
	return s.tracker.Settle(ctx, ds, func(it *item) { it.Return(due) })
}

// Reject settles messages and passes them to the place.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.tracker.Settle(ctx, ds, func(it *item) {
		it.Settle()
		s.place.reject(it.Value.message, reason, time.Now())
	})
}

// LongestDelay returns a year.
func (s *session) LongestDelay() time.Duration { return 365 * 24 * time.Hour }

// KeepsRejected returns true for a queue and false for a log.
func (s *session) KeepsRejected() bool { return s.place.keepsRejected() }

// Close ends the session. It ignores the context.
func (s *session) Close(context.Context) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if !s.tracker.Close() {
		s.leave()
	}
	return nil
}

// breakOff breaks the session. The mutex is held.
func (s *session) breakOff() {
	s.tracker.Fail(errBroken)
	s.leave()
}

// leave returns all messages in flight. The mutex is held.
func (s *session) leave() {
	delete(s.broker.open, s)
	s.place.leave(s)
	s.broker.mu.Broadcast()
}
