package demo

import (
	"context"
	"sync"
	"time"
)

// broker delivers at least once: a message comes back until an acknowledgement has arrived.
type broker struct {
	mu      sync.Mutex
	changed *sync.Cond
	queue   []*delivery
	open    int             // messages that are not acknowledged
	acked   map[string]bool // orders, by id

	deliveries, crashes int
}

// delivery is one message on its way to a worker, for the first time or again.
type delivery struct {
	message
	meeting  *meeting // of the two copies of a race; nil for all others
	refusals int
}

func newBroker(groups [][]message) *broker {
	b := &broker{acked: map[string]bool{}}
	b.changed = sync.NewCond(&b.mu)
	for _, group := range groups {
		var m *meeting
		if len(group) > 1 {
			m = newMeeting(len(group))
		}
		for _, msg := range group {
			b.queue = append(b.queue, &delivery{message: msg, meeting: m})
			b.open++
		}
	}
	return b
}

// next waits for a delivery. It is nil when all messages are acknowledged, or ctx has ended.
func (b *broker) next(ctx context.Context) *delivery {
	defer context.AfterFunc(ctx, b.wake)()
	d := b.take(ctx)
	if d != nil && d.meeting != nil {
		d.meeting.attend(ctx)
	}
	return d
}

func (b *broker) take(ctx context.Context) *delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.queue) == 0 && b.open > 0 && ctx.Err() == nil {
		b.changed.Wait()
	}
	if len(b.queue) == 0 || ctx.Err() != nil {
		return nil
	}
	d := b.queue[0]
	b.queue = b.queue[1:]
	b.deliveries++
	return d
}

func (b *broker) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed.Broadcast()
}

// crashed takes a message back from a worker that has died.
func (b *broker) crashed(d *delivery) {
	b.mu.Lock()
	b.crashes++
	b.mu.Unlock()
	b.again(&delivery{message: message{d.order, d.fates[1:]}}, 0)
}

// handled takes the acknowledgement of a worker, or loses it.
func (b *broker) handled(d *delivery) {
	if d.fates[0].loseAck {
		b.again(&delivery{message: message{d.order, d.fates[1:]}}, 0)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acked[d.order.ID] = true
	b.open--
	b.changed.Broadcast()
}

// refused takes a message back from a worker that could not handle it: this fate is still to come.
func (b *broker) refused(d *delivery, after time.Duration) {
	b.again(&delivery{message: d.message, refusals: d.refusals + 1}, after)
}

func (b *broker) again(d *delivery, after time.Duration) {
	time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.queue = append(b.queue, d)
		b.changed.Broadcast()
	})
}

// meeting lets its guests go when all of them are there. Copies of a message stand next to each other
// in the queue, so there is never more than one meeting under way, and two workers are enough.
type meeting struct {
	missing chan struct{}
	all     chan struct{}
}

func newMeeting(guests int) *meeting {
	return &meeting{missing: make(chan struct{}, guests-1), all: make(chan struct{})}
}

func (m *meeting) attend(ctx context.Context) {
	select {
	case m.missing <- struct{}{}:
	default: // the last one
		close(m.all)
	}
	select {
	case <-m.all:
	case <-ctx.Done():
	}
}
