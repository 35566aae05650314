// Package desk is what the sessions of adapters have in common. Messages stand in lanes, in the order of their offsets.
// A desk hands them out as far as its window goes, and each comes back, to be settled or to stand where it stood.
package desk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
)

var (
	// ErrClosed says that a session was closed.
	ErrClosed = errors.New("broker: it was closed: open another")

	// ErrGone says that a delivery is settled too late.
	ErrGone = errors.New("broker: this session does not have it any more: it comes again, here or elsewhere")

	errSettled = errors.New("broker: it was settled before")
)

// Desk hands messages out for a session, and takes them back.
type Desk[M any] struct {
	*Bell  // guards the desk, its lanes and whatever else the session has
	window int
	out    int
	turn   int // of the lane that is taken from next
	closed bool
	ended  error // why nothing is handed out any more
}

// Stock is where the messages of a desk come from.
type Stock[M any] interface {
	// Lanes are what may be handed out now. The mutex is held.
	Lanes() []*Lane[M]

	// Deliver makes the delivery of a message in a lane, without its Tag. The mutex is held.
	Deliver(*Lane[M], *Item[M]) broker.Delivery

	// Await may put more into the lanes, and returns when it has, or when ctx ends: then there may be something to hand
	// out, or nothing to wait for any more.
	Await(ctx context.Context)
}

// slip is the tag of a delivery.
type slip[M any] struct {
	desk    *Desk[M]
	item    *Item[M]
	attempt int
}

// New returns a desk, if its window is at least 1.
func New[M any](b *Bell, window int) (*Desk[M], error) {
	if window < 1 {
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	}
	return &Desk[M]{Bell: b, window: window}, nil
}

// Receive is that of [broker.Session].
func (d *Desk[M]) Receive(ctx context.Context, limit int, from Stock[M]) ([]broker.Delivery, error) {
	if limit < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least 1", broker.ErrInvalid, limit)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, next, err := d.take(limit, from)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		next.wait(ctx, from.Await)
	}
}

// take hands out one message of each lane in turn, as far as the window goes.
func (d *Desk[M]) take(limit int, from Stock[M]) (ds []broker.Delivery, next pause, err error) {
	d.Lock()
	defer d.Unlock()
	if d.ended != nil {
		return nil, next, d.ended
	}
	lanes, now := from.Lanes(), time.Now()
	for empty := 0; empty < len(lanes) && len(ds) < limit && d.out < d.window; {
		lane := lanes[d.turn%len(lanes)]
		d.turn++
		it, due := lane.first(now)
		if it == nil {
			next.due = earlier(next.due, due)
			empty++
			continue
		}
		empty = 0
		it.handOut(d)
		delivery := from.Deliver(lane, it)
		delivery.Tag = slip[M]{d, it, it.Attempt}
		lane.handed = max(lane.handed, it.Offset+1)
		ds = append(ds, delivery)
	}
	next.rung = d.rung()
	return ds, next, nil
}

// pause is what comes before something can be handed out.
type pause struct {
	due  time.Time // when something is, unless zero
	rung context.Context
}

func (p pause) wait(ctx context.Context, await func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.rung, cancel)()
	if !p.due.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, p.due)
		defer cancel()
	}
	await(ctx)
}

// Settle does something with each delivery that is out, which is not any more by then. The error is that of one that is
// not out, or not of this session. A context that has ended changes nothing.
func (d *Desk[M]) Settle(ctx context.Context, ds []broker.Delivery, do func(*Item[M])) (failed error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.Lock()
	defer d.Unlock()
	for _, delivery := range ds {
		it, err := d.find(delivery)
		switch {
		case err != nil:
			failed = err
		case it != nil:
			it.takeBack(errSettled)
			do(it)
		}
	}
	d.Ring()
	return failed
}

// Check has the error that Settle would have for the deliveries.
func (d *Desk[M]) Check(ds []broker.Delivery) error {
	d.Lock()
	defer d.Unlock()
	for _, delivery := range ds {
		if _, err := d.find(delivery); err != nil {
			return err
		}
	}
	return nil
}

// find returns what a delivery is of, or nil if nothing needs to be done for it.
func (d *Desk[M]) find(delivery broker.Delivery) (*Item[M], error) {
	tag, ok := delivery.Tag.(slip[M])
	switch {
	case !ok || tag.desk != d:
		return nil, fmt.Errorf("%w: the delivery of %q is not of this session", broker.ErrInvalid, delivery.Origin)
	case d.closed:
		return nil, ErrClosed
	case tag.attempt != tag.item.Attempt:
		return nil, fmt.Errorf("%s: %w", delivery.Origin, errSettled)
	case tag.item.holder == d:
		return tag.item, nil
	case tag.item.gone != nil:
		return nil, fmt.Errorf("%s: %w", delivery.Origin, tag.item.gone)
	}
	return nil, nil
}

// Window is how many deliveries may be out.
func (d *Desk[M]) Window() int { return d.window }

// Room is how many more messages may come before the window is full. The mutex is held.
func (d *Desk[M]) Room(of ...*Lane[M]) int {
	room := d.window - d.out
	for _, lane := range of {
		room -= lane.Fresh()
	}
	return room
}

// Ended says why nothing is handed out any more, or nil. The mutex is held.
func (d *Desk[M]) Ended() error { return d.ended }

// Fail lets nothing be handed out any more, for the first reason that is given. What is out can be settled. The mutex is
// held.
func (d *Desk[M]) Fail(err error) {
	if d.ended == nil {
		d.ended = err
	}
	d.Ring()
}

// Close lets nothing be handed out or settled any more, and reports whether it was closed before. The mutex is held.
func (d *Desk[M]) Close() (again bool) {
	again, d.closed = d.closed, true
	d.Fail(ErrClosed)
	return again
}

// Closed reports whether it was closed. The mutex is held.
func (d *Desk[M]) Closed() bool { return d.closed }

// Value is the message of a delivery of a desk.
func Value[M any](delivery broker.Delivery) M { return delivery.Tag.(slip[M]).item.Value }
