// Package inflight tracks the messages that a session has received and not
// settled. Messages wait in buffers, in the order of their offsets. A tracker
// delivers them within its window. Each is then settled, or returned to its
// place in the buffer.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
)

var (
	// ErrClosed is returned for calls of a session that was closed.
	ErrClosed = errors.New("broker: closed: open another")

	// ErrLost is returned for a delivery that the session has lost.
	ErrLost = fmt.Errorf("%w, and the message comes again", broker.ErrSettled)
)

// Tracker delivers the messages of a session and tracks them until they are
// settled.
type Tracker[M any] struct {
	*Cond    // guards the tracker, its buffers and the other state of the session
	window   int
	inFlight int
	turn     int // index of the buffer to take from next
	closed   bool
	err      error // why nothing is delivered any more
}

// Feed is where the messages of a tracker come from.
type Feed[M any] interface {
	// Buffers returns the buffers to deliver from now. The mutex is held.
	Buffers() []*Buffer[M]

	// NewDelivery returns the delivery of a message, without its Tag. The mutex
	// is held.
	NewDelivery(*Buffer[M], *Item[M]) broker.Delivery

	// Fetch waits for messages and adds them to the buffers. It may return early.
	// It returns when ctx ends, because a message may have become available, or
	// the session may have ended.
	Fetch(ctx context.Context)
}

// tag is the Tag of a delivery.
type tag[M any] struct {
	tracker *Tracker[M]
	item    *Item[M]
	attempt int
}

// NewTracker returns a tracker. It fails if the window is below 1.
func NewTracker[M any](c *Cond, window int) (*Tracker[M], error) {
	if window < 1 {
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	}
	return &Tracker[M]{Cond: c, window: window}, nil
}

// Receive implements the Receive of [broker.Session].
func (t *Tracker[M]) Receive(ctx context.Context, limit int, from Feed[M]) ([]broker.Delivery, error) {
	if limit < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least 1", broker.ErrInvalid, limit)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, next, err := t.take(limit, from)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		next.wait(ctx, from.Fetch)
	}
}

// take delivers one message of each buffer in turn, within the window.
func (t *Tracker[M]) take(limit int, from Feed[M]) (ds []broker.Delivery, next wakeup, err error) {
	t.Lock()
	defer t.Unlock()
	if t.err != nil {
		return nil, next, t.err
	}
	buffers, now := from.Buffers(), time.Now()
	for empty := 0; empty < len(buffers) && len(ds) < limit && t.inFlight < t.window; {
		b := buffers[t.turn%len(buffers)]
		t.turn++
		it, due := b.first(now)
		if it == nil {
			next.due = earlier(next.due, due)
			empty++
			continue
		}
		empty = 0
		it.deliver(t)
		delivery := from.NewDelivery(b, it)
		delivery.Tag = tag[M]{t, it, it.Attempt}
		b.delivered = max(b.delivered, it.Offset+1)
		ds = append(ds, delivery)
	}
	next.changed = t.changed()
	return ds, next, nil
}

// wakeup is when a message may become available.
type wakeup struct {
	due     time.Time // a returned message is due; zero: none
	changed context.Context
}

func (w wakeup) wait(ctx context.Context, fetch func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.changed, cancel)()
	if !w.due.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, w.due)
		defer cancel()
	}
	fetch(ctx)
}

// Settle ends the tracking of deliveries and calls do for each message. It
// skips deliveries that are not in flight in this session, and returns the error
// of one of them. If ctx has ended, Settle does nothing.
func (t *Tracker[M]) Settle(ctx context.Context, ds []broker.Delivery, do func(*Item[M])) (failed error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.Lock()
	defer t.Unlock()
	for _, delivery := range ds {
		it, err := t.find(delivery)
		switch {
		case err != nil:
			failed = err
		case it != nil:
			it.release(broker.ErrSettled)
			do(it)
		}
	}
	t.Broadcast()
	return failed
}

// Held returns those of the deliveries that are in flight in this session, and
// the error that Settle would return for the others.
func (t *Tracker[M]) Held(ds []broker.Delivery) (held []broker.Delivery, failed error) {
	t.Lock()
	defer t.Unlock()
	for _, delivery := range ds {
		it, err := t.find(delivery)
		switch {
		case err != nil:
			failed = err
		case it != nil:
			held = append(held, delivery)
		}
	}
	return held, failed
}

// find returns the item of a delivery, or nil if there is nothing to settle.
func (t *Tracker[M]) find(delivery broker.Delivery) (*Item[M], error) {
	tag, ok := delivery.Tag.(tag[M])
	switch {
	case !ok || tag.tracker != t:
		return nil, fmt.Errorf("%w: the delivery of %q is of another session", broker.ErrInvalid, delivery.Origin)
	case t.closed:
		return nil, ErrClosed
	case tag.attempt != tag.item.Attempt:
		return nil, fmt.Errorf("%s: %w", delivery.Origin, broker.ErrSettled)
	case tag.item.holder == t:
		return tag.item, nil
	case tag.item.released != nil:
		return nil, fmt.Errorf("%s: %w", delivery.Origin, tag.item.released)
	}
	return nil, nil
}

// Window returns the maximum number of deliveries in flight.
func (t *Tracker[M]) Window() int { return t.window }

// Room returns how many more messages may be fetched into buffers before the
// window is full. The mutex is held.
func (t *Tracker[M]) Room(buffers ...*Buffer[M]) int {
	room := t.window - t.inFlight
	for _, b := range buffers {
		room -= b.Unread()
	}
	return room
}

// Err returns the reason why nothing is delivered any more, or nil. The mutex is
// held.
func (t *Tracker[M]) Err() error { return t.err }

// Fail ends the delivery of messages, for the reason of the first call.
// Deliveries in flight can still be settled. The mutex is held.
func (t *Tracker[M]) Fail(err error) {
	if t.err == nil {
		t.err = err
	}
	t.Broadcast()
}

// Close ends delivery and settling. It reports whether the tracker was closed
// before. The mutex is held.
func (t *Tracker[M]) Close() (again bool) {
	again, t.closed = t.closed, true
	t.Fail(ErrClosed)
	return again
}

// Closed reports whether the tracker was closed. The mutex is held.
func (t *Tracker[M]) Closed() bool { return t.closed }

// Value returns the message of a delivery.
func Value[M any](delivery broker.Delivery) M { return delivery.Tag.(tag[M]).item.Value }
