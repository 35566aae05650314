package membroker

import (
	"bytes"
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

// Publisher returns another publisher. A message goes to every queue that is bound to its topic, and to the log of the
// topic; one that goes nowhere is an error. It is a [broker.Deduplicator], whose window is Options.Deduplicate.
func (b *Broker) Publisher() broker.Publisher { return &publisher{broker: b} }

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

var _ broker.Deduplicator = (*publisher)(nil)

// DeduplicationWindow returns Options.Deduplicate.
func (p *publisher) DeduplicationWindow() time.Duration { return p.broker.options.Deduplicate }

// Close ends the use of this publisher; others go on.
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
	b.mu.Ring()
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
		return desk.ErrClosed
	}
	return p.broker.store(clone(m), time.Now())
}

// store puts a message into everything that takes its topic.
func (b *Broker) store(m *broker.Message, now time.Time) error {
	queues, l := b.bound[m.Topic], b.logs[m.Topic]
	switch {
	case b.down:
		return errDown
	case len(queues) == 0 && l == nil:
		return errUnroutable // its ID is not remembered: it may be published again when there is a queue
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

// repeated reports whether an ID is one that was seen lately, and remembers it.
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

// clone copies a message. The monotonic reading of its time is left behind, as on the way to another process.
func clone(m *broker.Message) *broker.Message {
	c := *m
	c.Body = bytes.Clone(m.Body)
	c.Header = maps.Clone(m.Header)
	c.Time = m.Time.Round(0)
	c.Attempt = 0
	return &c
}
