package outbox

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/chance"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/turn"
	"github.com/effectively-once/once/store"
)

// lanes are the lanes that this relay leases. A lease ends here before it ends in
// the store, because its time is measured from before the request.
type lanes struct {
	*env
	changed chan struct{} // has an element when lanes may be new or surplus
	over    chan struct{} // closed by end
	soon    chan struct{} // has an element when the leases are to be renewed at once

	waits  waits     // for other relays; of the goroutine that calls ask
	asking turn.Turn // held from a request of leases until its answer is stored

	mu      sync.Mutex
	until   [store.Lanes]time.Time // the end of the lease; zero: the lane is not leased
	proof   proof                  // that this relay is present
	next    *identity              // to continue with as soon as nothing is in progress; nil: nothing changes
	asked   bool                   // that leases were requested under the current ID
	former  [][16]byte             // IDs of this relay whose lanes are to be released
	others  [][16]byte             // relays that have lanes
	gone    []goneRelay            // relays whose lanes are to be released, because their processes have ended
	term    [store.Lanes]uint64    // changes when another relay may have had the lane meanwhile
	surplus [store.Lanes]bool      // to be released as soon as none of its messages is in progress
}

func newLanes(e *env) *lanes {
	return &lanes{env: e, changed: make(chan struct{}, 1), soon: make(chan struct{}, 1), over: make(chan struct{})}
}

// renew renews the leases until end is called. It also takes and gives up lanes,
// so that all relays have equally many.
func (l *lanes) renew(ctx, working context.Context) {
	for first := true; ; first = false {
		wait := l.Lease / 6
		if first {
			wait = l.Lease / 20
		} else if enough, err := l.ask(working, ctx.Err() == nil); err != nil {
			l.Logger.WarnContext(ctx, "outbox: the leases could not be renewed", logs.Spaced(""), "error", err)
			wait = l.Lease / 20
		} else if !enough {
			wait = l.Lease / 20
		}
		timer := time.NewTimer(wait/2 + chance.N(wait/2+1))
		select {
		case <-l.over:
			timer.Stop()
			return
		case <-l.soon:
			timer.Stop()
			_ = sleep(working, l.Lease/100) // signals may come in quick succession
		case <-timer.C:
		}
	}
}

func (l *lanes) end() { close(l.over) }

// ask renews the leases. If more is set, it also takes free lanes up to this
// relay's share. It reports whether the relay has its share.
func (l *lanes) ask(ctx context.Context, more bool) (enough bool, err error) {
	if since := l.calling.Load(); since > 0 && time.Since(time.Unix(0, since)) > 2*l.PublishTime {
		return false, errors.New("the publisher has not returned, although its context has ended: other relays may take over")
	}
	l.freeGone(ctx)
	leases, err := l.lease(ctx, l.held())
	if errors.Is(err, errAbsent) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, free := len(l.held()), freeLanes(leases)
	share := l.share(leases)
	l.waits.see(l.env, leases, have < share)
	l.markSurplus(share)
	if wanted := min(share-have, len(free)); more && wanted > 0 {
		chance.Shuffle(len(free), func(i, k int) { free[i], free[k] = free[k], free[i] }) // so that relays do not ask for the same lanes
		if _, err = l.lease(ctx, append(l.held(), free[:wanted]...)); err != nil && !errors.Is(err, errAbsent) {
			return false, err
		}
	}
	return len(l.held()) >= share || !more, nil
}

// share is how many lanes this relay may have. All relays may have equally many.
// The remaining lanes go, one each, to relays that have one more already, and
// then to the first ones.
func (l *lanes) share(leases store.Leases) int {
	each, over := store.Lanes/max(leases.Relays, 1), store.Lanes%max(leases.Relays, 1)
	me, has := l.me(), make(map[[16]byte]int)
	for _, lane := range leases.Lanes {
		if lane.Left > 0 {
			has[lane.Relay]++
		}
	}
	for relay, n := range has {
		if relay != me && n > each && (has[me] <= each || bytes.Compare(relay[:], me[:]) < 0) {
			over--
		}
	}
	if over > 0 {
		return each + 1
	}
	return each
}

// lease leases the wanted lanes, and stores the answer.
func (l *lanes) lease(ctx context.Context, wanted []int) (store.Leases, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Lease/3)
	defer cancel()
	if err := l.asking.Take(ctx); err != nil {
		return store.Leases{}, err
	}
	defer l.asking.Give()
	if !l.begins() {
		return store.Leases{}, errAbsent
	}
	asked := time.Now()
	leases, err := l.Store.LeaseLanes(ctx, l.me(), l.Lease, wanted)
	if err != nil {
		return leases, err
	}
	if lost := l.store(leases, asked); len(lost) > 0 {
		l.Logger.WarnContext(ctx, "outbox: lanes were lost to another relay", "lanes", lost)
	}
	return leases, nil
}

// store stores the leases as they were after asked, and returns the lanes that
// this relay has lost.
func (l *lanes) store(leases store.Leases, asked time.Time) (lost []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	me := l.me()
	l.others = nil
	for i, lane := range leases.Lanes {
		if lane.Left > 0 && lane.Relay != me && !slices.Contains(l.others, lane.Relay) {
			l.others = append(l.others, lane.Relay)
		}
		switch {
		case lane.Relay != me:
			if !l.until[i].IsZero() {
				lost = append(lost, i)
			}
			l.until[i], l.surplus[i] = time.Time{}, false
		case lane.Left > 0:
			if !l.until[i].After(asked) {
				l.term[i]++
				signal(l.changed)
			}
			l.until[i] = asked.Add(lane.Left)
		}
	}
	return lost
}

// freeLanes returns the lanes without a valid lease.
func freeLanes(leases store.Leases) (free []int) {
	for i, lane := range leases.Lanes {
		if lane.Relay == [16]byte{} || lane.Left <= 0 {
			free = append(free, i)
		}
	}
	return free
}

// held returns the lanes that this relay leases, including expired leases.
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

// markSurplus marks the lanes beyond this relay's share. The table's reader gives
// them up.
func (l *lanes) markSurplus(share int) {
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

// giveUp releases surplus lanes, and those of former IDs of this relay. It is
// called when no message is in progress. While leases are being requested it does
// nothing, and is called again.
func (l *lanes) giveUp(ctx context.Context) {
	if !l.hasSurplus() || !l.asking.TryTake() {
		return
	}
	defer l.asking.Give()
	l.change()
	l.releaseFormer(ctx)
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
	if err := l.Store.ReleaseLanes(ctx, l.me(), surplus); err != nil { // the leases expire
		l.Logger.WarnContext(ctx, "outbox: lanes could not be released, and are free when their leases expire",
			"lanes", surplus, "error", err)
	}
}

// hasSurplus reports whether there are lanes to give up.
func (l *lanes) hasSurplus() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.surplus[:], true) || l.next != nil || len(l.former) > 0
}

// doubt stops the use of the lanes of messages until their leases are renewed,
// because another process has changed the messages. What was read of the lanes is
// read anew, also if the leases are being renewed now.
func (l *lanes) doubt(ms []store.Outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, m := range ms {
		if until := l.until[m.Lane]; until.After(now) {
			l.until[m.Lane] = now
			l.term[m.Lane]++
		}
	}
	signal(l.soon)
}

// leave releases all lanes.
func (l *lanes) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Lease/3)
	defer cancel()
	l.releaseFormer(ctx)
	if err := l.Store.ReleaseLanes(ctx, l.me(), nil); err != nil {
		l.Logger.WarnContext(ctx, "outbox: the lanes could not be released, and are free when their leases expire",
			"error", err)
	}
}

// usable returns the lanes that may be published from: those whose lease lasts
// long enough to begin a call of the publisher.
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

// terms returns the terms of all lanes.
func (l *lanes) terms() [store.Lanes]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

func (l *lanes) lasts(lane int) bool {
	return l.proof.allows(time.Now()) && !l.surplus[lane] && time.Until(l.until[lane]) > min(l.PublishTime, l.Lease/2)
}

// during returns the context of a call of the publisher with messages. It ends with
// the leases of their lanes, however long the call may take otherwise: they are
// renewed meanwhile.
func (l *lanes) during(ctx context.Context, ms []store.Outgoing) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var timer *time.Timer
	var mu sync.Mutex // guards timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(l.left(ms), func() {
		if left := l.left(ms); left > 0 {
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() == nil { // else the call has ended meanwhile
				timer.Reset(left)
			}
			return
		}
		cancel(errLapsed)
	})
	return ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		cancel(context.Canceled)
	}
}

var (
	errLapsed = errors.New("outbox: the leases of the messages could not be renewed in time")
	errAbsent = errors.New("outbox: the ID of this relay must not lease lanes any more")
)

// left is how long the lanes of messages are leased, and this relay is known to be
// present.
func (l *lanes) left(ms []store.Outgoing) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.until[ms[0].Lane]
	for _, m := range ms {
		if l.until[m.Lane].Before(until) {
			until = l.until[m.Lane]
		}
	}
	if end := l.proof.ends(); l.proof.state != unmarked && end.Before(until) {
		until = end
	}
	return time.Until(until)
}

// owned reports whether a lane may be published from, and is in a term.
func (l *lanes) owned(lane int, term uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lasts(lane) && l.term[lane] == term
}
