package world

import (
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// attempt is what its process knows of an attempt of work at a downstream.
type attempt struct {
	by      *sim.Process
	began   time.Duration
	ended   time.Duration // 0: it has not
	isKnown bool          // it ended, and its process knows how
}

// begins is told of each attempt that begins at a downstream. ends is called when it
// has ended.
func (b *book) begins(key string, by *sim.Process) (ends func(isKnown bool)) {
	a := &attempt{by: by, began: b.Now()}
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

// judgeUnknown is called when somebody is asked whether work has happened. That
// needs a reason: an attempt whose end its process does not know, or could not
// record.
func (b *book) judgeUnknown(key string) {
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

const longLease = 30 * time.Second

// lost returns how long calls of the store about a key may have been repeated in
// vain since a time.
func (b *book) lost(key string, since time.Duration) (sum time.Duration) {
	for _, l := range b.CallsAbout(key) {
		switch {
		case l.At < since, l.What == "Effect", l.What == "Lookup":
		case l.What == "Claim" && l.Fault == sim.Late: // it may arrive when the key is forgotten
			sum += longLease
		case l.Fault == sim.Hang, l.Fault == sim.Late:
			sum += 6 * time.Second
		case l.Fault != sim.NoFault:
			sum += time.Second
		}
	}
	return sum
}

// judgeNeverBegun judges a key whose work never began. A caller who gives up gives
// its claim back, if the store answers the last of its calls.
func (b *book) judgeNeverBegun(key string) {
	claims := make(map[string]sim.FaultKind) // what went wrong with the last one, by its process
	for _, l := range b.CallsAbout(key) {
		switch {
		case l.What == "Claim" && l.Fault != sim.Late && l.Fault != sim.Hang:
			claims[l.Who] = l.Fault
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

// hearsOfOutages is told when a link goes down or comes back.
func (b *book) hearsOfOutages(link sim.Link, _ bool) {
	if link == sim.StoreName {
		b.outage.Store(int64(b.Now()) + 1)
	}
}

// storeWasDown reports whether the store was down at a time, or has been since.
func (b *book) storeWasDown(since time.Duration) bool {
	last := time.Duration(b.outage.Load())
	return b.IsDown(sim.StoreName) || last > since
}
