package world

import (
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
)

// attempt is what its process knows of an attempt of work at a downstream.
type attempt struct {
	number  int64 // of its claim
	by      *sim.Process
	began   time.Duration
	ended   time.Duration // 0: it has not
	isKnown bool          // it ended, and its process knows how
}

// begins is told of each attempt that begins at a downstream. ends is called when it
// has ended.
func (b *book) begins(key string, number int64, by *sim.Process) (ends func(isKnown bool)) {
	a := &attempt{number: number, by: by, began: b.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.of(key)
	d.attempts = append(d.attempts, a)
	return func(isKnown bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		a.ended, a.isKnown = b.Now(), isKnown
	}
}

// judgeAsked is called when somebody is about to find out what happened. The record
// may be another one by now, if a reply was slow.
func (k *keys[Tx]) judgeAsked(key once.Key) {
	is := k.shop.record(key)
	if is.Status == once.Parked && strings.HasPrefix(is.Reason, "not run again") {
		is.Attempt-- // the one before is unknown: this one was claimed when its key had become too old
	}
	if is.Status == once.Unknown || is.Status == once.Parked {
		k.book.judgeUnknown(sim.KeyText(key), is.Attempt)
	}
}

// judgeUnknown is called when somebody is asked whether work has happened. That
// needs a reason: an attempt whose end its process does not know, or could not
// record.
func (b *book) judgeUnknown(key string, number int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.CAS != nil || b.Policy.Lease < longLease || b.HasStalled() {
		return // the lease may have lapsed
	}
	d := b.of(key)
	if len(d.attempts) == 0 {
		b.judgeNeverBegun(key)
		return
	}
	last := d.attempts[len(d.attempts)-1]
	if last.number < number {
		b.judgeNeverBegun(key)
		return
	}
	for _, a := range d.attempts {
		if a.ended == 0 && !a.by.IsDead() || a.ended > last.ended {
			return // attempts overlap: that is for others to judge
		}
	}
	if b.storeWasDown(last.began) {
		return
	}
	if last.isKnown && !last.by.IsDead() && last.ended-last.began < longLease/4 && b.lost(key, last.began) < longLease/2 {
		b.Broke(Blame, key, "its outcome is unknown, and %s knew it %v ago: it lost %v to faults, and its lease is %v",
			last.by.Name, (b.Now() - last.ended).Round(time.Millisecond), b.lost(key, last.began), b.Policy.Lease)
	}
}

const (
	longLease    = 30 * time.Second
	claimsArrive = sim.Latest + 5*time.Second // or never
)

// lost returns how long calls of the store about a key may have been repeated in
// vain since a time.
func (b *book) lost(key string, since time.Duration) (sum time.Duration) {
	for _, l := range b.CallsAbout(key) {
		switch {
		case isSlowClaim(l) && l.At+claimsArrive > since:
			sum += longLease
		case l.At < since, l.What == "Effect", l.What == "Lookup":
		case l.Fault == sim.Hang, l.Fault == sim.Late, l.Fault == sim.Slow:
			sum += 6 * time.Second
		case l.Fault != sim.NoFault:
			sum += time.Second
		}
	}
	return sum
}

// isSlowClaim reports whether a claim may be left behind: it arrives when its key is
// forgotten, or free, or its caller has gone, who has a second to give it back.
func isSlowClaim(l sim.Line) bool {
	return l.What == "Claim" && (l.Fault == sim.Late || l.Fault == sim.Slow)
}

// judgeNeverBegun judges a key whose work never began. A caller who gives up gives
// its claim back, if the store answers the last of its calls.
func (b *book) judgeNeverBegun(key string) {
	claims := make(map[string]sim.FaultKind) // what went wrong with the last one, by its process
	lost := make(map[string]time.Duration)   // when something went wrong with one
	for _, l := range b.CallsAbout(key) {
		switch {
		case l.What == sim.InFlight && (b.of(key).left || l.Note == sim.ForLong):
			return // as the one that was to give it back may meet it
		case l.What == "Claim" && l.Fault != sim.Hang && !isSlowClaim(l):
			claims[l.Who] = l.Fault
			if at, before := lost[l.Who]; l.Fault != sim.NoFault && before && l.At-at < 2*time.Second {
				return // the one that was to give it back
			} else if l.Fault != sim.NoFault {
				lost[l.Who] = l.At
			}
		case l.Fault != sim.NoFault:
			return
		}
	}
	for _, fault := range claims {
		if fault != sim.NoFault {
			return
		}
	}
	if b.DeathsOf("") == 0 && !b.storeWasDown(0) {
		b.Broke(Blame, key, "its outcome is unknown, and its work has never begun")
	}
}

// hearsOfOutages is told when a link goes down or comes back: that of the store, or
// of a process.
func (b *book) hearsOfOutages(link sim.Link, _ bool) {
	if link != Downstream && link != Network {
		b.outage.Store(int64(b.Now()) + 1)
	}
}

// storeWasDown reports whether the store was down at a time, or has been since.
func (b *book) storeWasDown(since time.Duration) bool {
	last := time.Duration(b.outage.Load())
	return b.IsDown(sim.StoreName) || last > since
}
