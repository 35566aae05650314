package membroker

import (
	"bytes"
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// Publisher returns a publisher. A message goes to every queue that is bound to
// its topic, and to the log of the topic. If there is none, Publish returns an
// error. The publisher is a [broker.Deduplicator], whose window is
// Options.Deduplicate.
func (b *Broker) Publisher() broker.Publisher { return &publisher{broker: b} }

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

var _ broker.Deduplicator = (*publisher)(nil)

// DeduplicationWindow returns Options.Deduplicate.
func (p *publisher) DeduplicationWindow() time.Duration { return p.broker.options.Deduplicate }

// Close ends the use of this publisher.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// Publish stores copies of messages.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	b := p.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	errs, failed := make([]error, len(ms)), false
	for i, m := range ms {
		errs[i] = p.publish(ctx, m)
		failed = failed || errs[i] != nil
	}
	b.mu.Broadcast()
	if !failed {
		return nil
	}
	return errs
}

func (p *publisher) publish(ctx context.Context, m *broker.Message) error {
	if err := m.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.closed.Load() {
		return inflight.ErrClosed
	}
	return p.broker.store(clone(m), time.Now())
}

// store adds a message to all queues and the log of its topic.
func (b *Broker) store(m *broker.Message, now time.Time) error {
	queues, l := b.bound[m.Topic], b.logs[m.Topic]
	switch {
	case b.down:
		return errDown
	case len(queues) == 0 && l == nil:
		return errUnroutable // its ID is not remembered, so it may be published again once there is a queue
	case !b.repeated(m.ID, now):
		times := 1
		if lost(&b.double) {
			times = 2
		}
		for range times {
			for _, q := range queues {
				q.add(m, now)
			}
			if l != nil {
				l.add(m, now)
			}
		}
	}
	if lost(&b.lose.confirms) {
		return errConfirm
	}
	return nil
}

// repeated reports whether an ID was seen within the window, and remembers it.
func (b *Broker) repeated(id string, now time.Time) bool {
	window := b.options.Deduplicate
	if window <= 0 {
		return false
	}
	if now.Sub(b.swept) > window {
		maps.DeleteFunc(b.seen, func(_ string, at time.Time) bool { return now.Sub(at) > window })
		b.swept = now
	}
	at, seen := b.seen[id]
	if seen && now.Sub(at) <= window {
		return true
	}
	b.seen[id] = now
	return false
}

// clone copies a message, without the monotonic clock reading of its time, as if
// it came from another process.
func clone(m *broker.Message) *broker.Message {
	c := *m
	c.Body = bytes.Clone(m.Body)
	c.Header = maps.Clone(m.Header)
	c.Time = m.Time.Round(0)
	c.Attempt = 0
	return &c
}
