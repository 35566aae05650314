package cas

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

const lanesDoc = "lanes"

// leases is who publishes what.
type leases struct {
	Lanes [store.Lanes]lane
	Alive map[string]Instant // until when each relay is alive
}

// lane is the lease of a lane. A lapsed lease remains until a relay takes or
// releases the lane.
type lane struct {
	Relay string `json:",omitempty"` // empty: nobody
	Until Instant
	Lease time.Duration
}

func nameOf(relay [16]byte) string { return hex.EncodeToString(relay[:]) }

// at returns the leases for a relay. One that it has itself ends before others
// may take it.
func (l *leases) at(relay string, now Now) (as store.Leases) {
	as.Relays = len(l.Alive)
	for i, is := range l.Lanes {
		id, err := hex.DecodeString(is.Relay)
		if err != nil || len(id) != len(as.Lanes[i].Relay) {
			continue
		}
		left := now.AtMostUntil(is.Until)
		if is.Relay == relay {
			left = now.AtLeastUntil(is.Until)
		}
		as.Lanes[i] = store.LaneLease{Relay: [16]byte(id), Left: min(left, is.Lease)}
	}
	return as
}

// LeaseLanes makes a relay known as alive, and leases or extends those of the
// lanes that it has or that nobody has. The zero relay leases nothing: it is
// [once.ErrInvalid].
func (p *Publishing[Tx]) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (as store.Leases, err error) {
	if err := checkLanes(lanes); err != nil {
		return as, err
	}
	if relay == [16]byte{} {
		return as, fmt.Errorf("%w: the zero relay leases no lanes: give each relay a token of its own", once.ErrInvalid)
	}
	me := nameOf(relay)
	err = p.lease(ctx, func(l *leases, now Now) bool {
		l.Alive[me] = now.In(ttl)
		for _, i := range lanes {
			if is := &l.Lanes[i]; is.Relay == me || is.Relay == "" || now.Passed(is.Until) {
				*is = lane{Relay: me, Until: now.In(ttl), Lease: ttl}
			}
		}
		as = l.at(me, now)
		return true
	})
	return as, err
}

// lostRelay is the relay of all lanes after their document could not be read.
var lostRelay = [16]byte([]byte("leases were lost"))

// lostFor is how long nobody leases a lane after the document could not be read, so
// that what it said has lapsed, if the relays of an outbox have leases of at most
// this.
const lostFor = time.Minute

// lostLeases returns what replaces a document that cannot be read.
func lostLeases(now Now) (l leases) {
	for i := range l.Lanes {
		l.Lanes[i] = lane{Relay: nameOf(lostRelay), Until: now.In(lostFor), Lease: lostFor}
	}
	return l
}

// ReleaseLanes ends the leases of a relay on lanes. If lanes is nil, it ends all
// of them, and the relay is no longer alive.
func (p *Publishing[Tx]) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	if err := checkLanes(lanes); err != nil {
		return err
	}
	me := nameOf(relay)
	return p.lease(ctx, func(l *leases, _ Now) (changed bool) {
		if lanes == nil {
			_, changed = l.Alive[me]
			delete(l.Alive, me)
		}
		for i := range l.Lanes {
			if l.Lanes[i].Relay == me && (lanes == nil || slices.Contains(lanes, i)) {
				l.Lanes[i], changed = lane{}, true
			}
		}
		return changed
	})
}

// OutboxLeases returns all leases. Unlike LeaseLanes, which is a relay's heartbeat,
// it changes nothing.
func (p *Publishing[Tx]) OutboxLeases(ctx context.Context) (as store.Leases, err error) {
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return as, err
	}
	l, err := p.leases(ctx)
	switch {
	case errors.Is(err, once.ErrCorrupt):
		l = lostLeases(now)
		as = l.at("", now)
		as.Damaged = err
		return as, nil
	case err != nil:
		return as, err
	}
	l.forget(now)
	return l.at("", now), nil
}

// leases returns what is stored.
func (p *Publishing[Tx]) leases(ctx context.Context) (l leases, err error) {
	doc, err := p.Queue.LoadDoc(ctx, DocName{Name: lanesDoc})
	if err == nil {
		_, err = decodeDoc(lanesDoc, doc, &l)
	}
	return l, err
}

// forget drops relays that are no longer alive.
func (l *leases) forget(now Now) {
	for relay, until := range l.Alive {
		if now.Passed(until) {
			delete(l.Alive, relay)
		}
	}
}

// lease changes the leases, without relays that are no longer alive.
func (p *Publishing[Tx]) lease(ctx context.Context, change func(*leases, Now) (changed bool)) error {
	return alone(ctx, p.Queue, func(tx Tx) error {
		d, now, err := docsIn(ctx, p.Transactions, p.Queue, tx, p.MaxDoc)
		if err != nil {
			return err
		}
		var l leases
		_, err = d.read(ctx, lanesDoc, &l)
		damaged := errors.Is(err, once.ErrCorrupt)
		switch {
		case damaged:
			p.Transactions.Options().Logger.WarnContext(ctx, "outbox: the leases of lanes could not be read, and begin anew", logs.Spaced(""),
				"in", lostFor, "error", err)
			l = lostLeases(now)
		case err != nil:
			return err
		}
		if l.Alive == nil {
			l.Alive = make(map[string]Instant)
		}
		l.forget(now)
		if !change(&l, now) && !damaged {
			return nil
		}
		return d.write(lanesDoc, l)
	})
}

// mayChange returns whether a relay may change messages in a lane: it is the zero
// relay, or has the lease, even a lapsed one. A relay that loses the lane after it
// was asked changes only messages that nobody has changed since it read them.
func (p *Publishing[Tx]) mayChange(ctx context.Context, relay [16]byte) (may func(lane int) bool, err error) {
	if err := ctx.Err(); err != nil || relay == [16]byte{} {
		return func(int) bool { return true }, err
	}
	l, err := p.leases(ctx)
	me := nameOf(relay)
	return func(lane int) bool { return l.Lanes[lane].Relay == me }, err
}

func checkLanes(lanes []int) error {
	for _, lane := range lanes {
		if lane < 0 || lane >= store.Lanes {
			return fmt.Errorf("%w: there is no lane %d: they are from 0 to %d", once.ErrInvalid, lane, store.Lanes-1)
		}
	}
	return nil
}
