package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// lease is the lease of a lane. A lapsed lease remains until a relay takes or
// releases the lane.
type lease struct {
	relay [16]byte // zero: nobody
	until time.Time
}

func (l lease) hasLapsed(now time.Time) bool { return !now.Before(l.until) }

// mayChange reports whether relay may change messages in a lane: it is the zero
// relay, or has the lease, even a lapsed one.
func (o *outbox) mayChange(relay [16]byte, lane int) bool {
	return relay == [16]byte{} || relay == o.leases[lane].relay
}

// LeaseLanes makes a relay known as alive, and leases or extends those of the
// lanes that it has or that nobody has. The zero relay leases nothing: it is
// [once.ErrInvalid].
func (s *Store) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration,
	lanes []int) (as store.Leases, err error) {

	if err := checkLanes(lanes); err != nil {
		return as, err
	}
	if relay == [16]byte{} {
		return as, fmt.Errorf("%w: the zero relay leases no lanes: give each relay a token of its own", once.ErrInvalid)
	}
	err = s.do(ctx, func(now time.Time) error {
		o := &s.outbox
		o.alive[relay] = now.Add(ttl)
		for _, lane := range lanes {
			if l := o.leases[lane]; l.relay == relay || l.hasLapsed(now) {
				o.leases[lane] = lease{relay, now.Add(ttl)}
			}
		}
		as = o.leasesAt(now)
		return nil
	})
	return as, err
}

// leasesAt returns all leases. It drops relays that are no longer alive.
func (o *outbox) leasesAt(now time.Time) (as store.Leases) {
	for relay, until := range o.alive {
		if !now.Before(until) {
			delete(o.alive, relay)
		}
	}
	as.Relays = len(o.alive)
	for lane, l := range o.leases {
		if l.relay != [16]byte{} {
			as.Lanes[lane] = store.LaneLease{Relay: l.relay, Left: l.until.Sub(now)}
		}
	}
	return as
}

// ReleaseLanes ends the leases of a relay on lanes. If lanes is nil, it ends
// all of them, and the relay is no longer alive.
func (s *Store) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	if err := checkLanes(lanes); err != nil {
		return err
	}
	return s.do(ctx, func(time.Time) error {
		o := &s.outbox
		if lanes == nil {
			delete(o.alive, relay)
			for lane := range o.leases {
				lanes = append(lanes, lane)
			}
		}
		for _, lane := range lanes {
			if o.leases[lane].relay == relay {
				o.leases[lane] = lease{}
			}
		}
		return nil
	})
}

// ear listens for commits to the outbox.
type ear struct {
	store *Store
	rung  chan struct{}
}

// ring wakes all ears. An ear that has not waited since the last ring needs no
// other.
func (o *outbox) ring() {
	for e := range o.ears {
		select {
		case e.rung <- struct{}{}:
		default:
		}
	}
}

// HearOutbox begins to listen.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	e := &ear{store: s, rung: make(chan struct{}, 1)}
	err := s.do(ctx, func(time.Time) error {
		s.outbox.ears[e] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Wait returns nil if messages were committed since HearOutbox, or since the
// last Wait began.
func (e *ear) Wait(ctx context.Context) error {
	if err := e.listens(); err != nil {
		return err
	}
	select {
	case <-e.rung:
		return e.listens() // Close of the store rings, too
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *ear) listens() error {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.store.closed || !e.store.outbox.ears[e] {
		return once.ErrClosed
	}
	return nil
}

// Far returns true: no other process can put messages into a store in memory.
func (e *ear) Far() bool { return true }

// Close ends the listening.
func (e *ear) Close() {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	delete(e.store.outbox.ears, e)
}
