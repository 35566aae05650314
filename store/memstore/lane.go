package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// lease is who has a lane. It remains when it has lapsed, until somebody takes the lane or gives it up.
type lease struct {
	relay [16]byte // zero: nobody
	until time.Time
}

func (l lease) hasLapsed(now time.Time) bool { return !now.Before(l.until) }

// mayChange reports whether relay may change messages of a lane: it is people, or nobody else took the lane since.
func (o *outbox) mayChange(relay [16]byte, lane int) bool {
	return relay == [16]byte{} || relay == o.leases[lane].relay
}

// LeaseLanes is the sign of life of a relay. It leases to it, or extends, those of the lanes that are its own or
// nobody's. People, who are the zero relay, lease nothing: it is [once.ErrInvalid].
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

// leasesAt is how things are. It drops relays that are not alive any more.
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

// ReleaseLanes makes lanes of a relay nobody's. With nil it is all of them, and the relay is no longer alive.
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

// ear hears of the commits of this store.
type ear struct {
	store *Store
	rung  chan struct{}
}

// ring tells all ears. One that was told, and has not listened since, need not be told again.
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

// Wait returns when messages were committed since HearOutbox, or since the last Wait began.
func (e *ear) Wait(ctx context.Context) error {
	if err := e.listens(); err != nil {
		return err
	}
	select {
	case <-e.rung:
		return e.listens() // the end of the store rings, too
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

// Far is true: nobody else can put anything into a store in memory.
func (e *ear) Far() bool { return true }

// Close ends the listening.
func (e *ear) Close() {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	delete(e.store.outbox.ears, e)
}
