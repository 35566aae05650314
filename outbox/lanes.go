package outbox

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// lanes are those that this relay leases. Its clock is its own: a lease ends here, by the time since it was asked for,
// before it ends in the store.
type lanes struct {
	*run
	changed chan struct{} // has an element when there may be lanes that are new
	over    chan struct{}

	soon chan struct{} // has an element when the leases are to be renewed at once

	asking sync.Mutex // held while the store is asked, and its answer noted

	mu      sync.Mutex
	until   [store.Lanes]time.Time // when the lease ends; zero: it is not ours
	surplus [store.Lanes]bool      // to be given up as soon as nothing of it is on its way
}

func newLanes(r *run) *lanes {
	return &lanes{run: r, changed: make(chan struct{}, 1), soon: make(chan struct{}, 1), over: make(chan struct{})}
}

// renew keeps the leases, and takes and gives up lanes so that relays have equally many, until end is called.
func (l *lanes) renew(ctx, working context.Context) {
	for first := true; ; first = false {
		wait := l.Lease / 6
		if first {
			wait = l.Lease / 20
		} else if content, err := l.ask(working, ctx.Err() == nil); err != nil {
			l.Logger.WarnContext(ctx, "outbox: the leases could not be renewed", logs.Spaced(""), "error", err)
			wait = l.Lease / 20
		} else if !content {
			wait = l.Lease / 20
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-l.over:
			timer.Stop()
			return
		case <-l.soon:
			timer.Stop()
			_ = sleep(working, l.Lease/100) // it may happen again and again
		case <-timer.C:
		}
	}
}

func (l *lanes) end() { close(l.over) }

// ask gives a sign of life, extends what is ours, and takes what is missing to our share if there is more to come. It
// reports whether the share is had.
func (l *lanes) ask(ctx context.Context, more bool) (content bool, err error) {
	if since := l.calling.Load(); since > 0 && time.Since(time.Unix(0, since)) > 2*l.PublishTime {
		return false, errors.New("the publisher has not come back, although its context has ended: others may take over")
	}
	leases, err := l.lease(ctx, l.held())
	if err != nil {
		return false, err
	}
	have, free := len(l.held()), nobodys(leases)
	share := l.share(leases)
	l.limit(share)
	if wanted := min(share-have, len(free)); more && wanted > 0 {
		rand.Shuffle(len(free), func(i, k int) { free[i], free[k] = free[k], free[i] }) // rivals do not meet at each
		if _, err = l.lease(ctx, append(l.held(), free[:wanted]...)); err != nil {
			return false, err
		}
	}
	return len(l.held()) >= share || !more, nil
}

// share is how many lanes are ours: as many as everybody's, and one more for those that have it already, or that come
// first, as long as some are left over.
func (l *lanes) share(leases store.Leases) int {
	each, over := store.Lanes/max(leases.Relays, 1), store.Lanes%max(leases.Relays, 1)
	has := make(map[[16]byte]int)
	for _, lane := range leases.Lanes {
		if lane.Left > 0 {
			has[lane.Relay]++
		}
	}
	for relay, n := range has {
		if relay != l.me && n > each && (has[l.me] <= each || bytes.Compare(relay[:], l.me[:]) < 0) {
			over--
		}
	}
	if over > 0 {
		return each + 1
	}
	return each
}

// lease asks the store, and notes what it says of our lanes.
func (l *lanes) lease(ctx context.Context, wanted []int) (store.Leases, error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.Lease/3)
	defer cancel()
	asked := time.Now()
	leases, err := l.Store.LeaseLanes(ctx, l.me, l.Lease, wanted)
	if err != nil {
		return leases, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, lane := range leases.Lanes {
		switch {
		case lane.Relay != l.me:
			if !l.until[i].IsZero() {
				l.Logger.WarnContext(ctx, "outbox: a lane was lost to another relay", "lane", i)
			}
			l.until[i], l.surplus[i] = time.Time{}, false
		case lane.Left > 0:
			if !l.until[i].After(asked) {
				signal(l.changed)
			}
			l.until[i] = asked.Add(lane.Left)
		}
	}
	return leases, nil
}

// nobodys are the lanes that can be taken.
func nobodys(leases store.Leases) (free []int) {
	for i, lane := range leases.Lanes {
		if lane.Relay == [16]byte{} || lane.Left <= 0 {
			free = append(free, i)
		}
	}
	return free
}

// held are the lanes that are ours, or may still be.
func (l *lanes) held() (held []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, until := range l.until {
		if !until.IsZero() {
			held = append(held, i)
		}
	}
	return held
}

// limit marks what is more than our share. The pump is told, and gives it up.
func (l *lanes) limit(share int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := 0
	for i, until := range l.until {
		if until.IsZero() {
			continue
		}
		have++
		l.surplus[i] = have > share
		if l.surplus[i] {
			signal(l.changed)
		}
	}
}

// giveUp releases what is more than our share. It is called when nothing is on its way.
func (l *lanes) giveUp(ctx context.Context) {
	if !l.any() {
		return
	}
	l.asking.Lock()
	defer l.asking.Unlock()
	l.mu.Lock()
	var surplus []int
	for i, more := range l.surplus {
		if more {
			surplus = append(surplus, i)
			l.until[i], l.surplus[i] = time.Time{}, false
		}
	}
	l.mu.Unlock()
	if len(surplus) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.Lease/3)
	defer cancel()
	if err := l.Store.ReleaseLanes(ctx, l.me, surplus); err != nil { // then they lapse
		l.Logger.WarnContext(ctx, "outbox: lanes could not be handed over, and will be when their leases have lapsed",
			"lanes", surplus, "error", err)
	}
}

// any reports whether there is something to give up.
func (l *lanes) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.surplus[:], true)
}

// doubt stops the use of lanes until the store has said whose they are: somebody else has changed what is in them.
func (l *lanes) doubt(ms []store.Outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, m := range ms {
		if until := l.until[m.Lane]; until.After(now) {
			l.until[m.Lane] = now
		}
	}
	signal(l.soon)
}

// leave gives everything back.
func (l *lanes) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Lease/3)
	defer cancel()
	if err := l.Store.ReleaseLanes(ctx, l.me, nil); err != nil {
		l.Logger.WarnContext(ctx, "outbox: the lanes could not be given back, and will be free when their leases have lapsed",
			"error", err)
	}
}

// usable are the lanes that may be published from: those whose lease does not end while a batch is on its way.
func (l *lanes) usable() (usable []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.until {
		if l.lasts(i) {
			usable = append(usable, i)
		}
	}
	return usable
}

func (l *lanes) lasts(lane int) bool {
	return !l.surplus[lane] && time.Until(l.until[lane]) > l.PublishTime
}

// owned reports whether a lane may be published from now.
func (l *lanes) owned(lane int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lasts(lane)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
