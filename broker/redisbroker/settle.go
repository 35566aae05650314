package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/redis/go-redis/v9"
)

var errSettled = fmt.Errorf("redisbroker: %w", broker.ErrSettled)

// Ack acknowledges entries, and waits for the answer.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ctx, ds, ackEntries)
}

// Return lets entries be delivered again, within a second. It ignores the delay.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, _ time.Duration) error {
	return s.settle(ctx, ds, returnEntries, returnedConsumer)
}

// Reject acknowledges entries. If there is a stream for dead letters, it appends
// them there first.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.options.DeadLetter == "" {
		return s.settle(ctx, ds, ackEntries)
	}
	kept, err := s.appendDeadLetters(ctx, ds, reason)
	if len(kept) == 0 {
		return err
	}
	return errors.Join(err, s.settle(ctx, kept, ackEntries))
}

// KeepsRejected reports whether there is a stream for dead letters.
func (s *session) KeepsRejected() bool { return s.options.DeadLetter != "" }

// appendDeadLetters appends the dead letters of entries that are still owned, and
// returns the deliveries whose dead letters are stored. The others stay pending.
func (s *session) appendDeadLetters(ctx context.Context, ds []broker.Delivery, reason string) (kept []broker.Delivery, err error) {
	as, err := s.find(ds)
	if len(as) == 0 {
		return nil, err
	}
	lost, renewErr := s.change(ctx, renewEntries, idsOf(as))
	if renewErr != nil {
		return nil, errors.Join(err, renewErr)
	}
	s.lose(as, lost)
	for _, d := range ds {
		a, ok := d.Tag.(*arrival)
		owned, stored := ok && s.owns(a), ok && s.isDead(a)
		switch {
		case !owned:
			err = errors.Join(err, errSettled)
			continue
		case stored: // by an earlier try, whose ack has failed
			kept = append(kept, d)
			continue
		}
		add := &redis.XAddArgs{Stream: s.options.DeadLetter, Values: deadLetter(a, s.stream, reason)}
		if addErr := s.client.XAdd(ctx, add).Err(); addErr != nil {
			err = errors.Join(err, fmt.Errorf("redisbroker: append a dead letter to the stream %q: %w", s.options.DeadLetter, addErr))
			continue
		}
		s.mu.Lock()
		a.dead = true
		s.mu.Unlock()
		kept = append(kept, d)
	}
	return kept, err
}

func (s *session) isDead(a *arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.dead
}

// owns reports whether an entry is unsettled and was not claimed by another
// session.
func (s *session) owns(a *arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[a.id] == a
}

// find returns the entries of unsettled deliveries.
func (s *session) find(ds []broker.Delivery) (as []*arrival, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, fmt.Errorf("redisbroker: the session has ended, and its deliveries come again: %w", s.broken)
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && s.all[a.id] == a {
			as = append(as, a)
		} else {
			err = errSettled
		}
	}
	return as, err
}

// settle settles deliveries with the server. After an error of the server they
// stay in the window and may be settled again. Those that were lost leave it.
func (s *session) settle(ctx context.Context, ds []broker.Delivery, script *redis.Script, more ...any) error {
	as, err := s.find(ds)
	if len(as) == 0 {
		return err
	}
	slices.SortFunc(as, func(a, b *arrival) int { return a.id.compare(b.id) })
	lost, changeErr := s.change(ctx, script, idsOf(as), more...)
	if changeErr != nil {
		return errors.Join(err, changeErr)
	}
	s.mu.Lock()
	for _, a := range as {
		s.drop(a)
	}
	s.mu.Unlock()
	wake.Signal(s.room)
	if len(lost) > 0 {
		err = errors.Join(err, fmt.Errorf("redisbroker: %s: another session has claimed %d of %d deliveries, or settled them: %w",
			s.Name(), len(lost), len(as), broker.ErrSettled))
	}
	return err
}

func idsOf(as []*arrival) []string {
	ids := make([]string, len(as))
	for i, a := range as {
		ids[i] = a.id.String()
	}
	return ids
}
