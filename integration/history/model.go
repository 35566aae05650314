package history

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// tolerance is how much the clock of a store may differ from that of the test:
// SQLite counts in milliseconds.
const tolerance = 5_000 // microseconds

// state is what a store must remember of a key.
type state struct {
	row

	by     int64 // the transact that wrote the row, as its claim; 0: it was another call
	before row   // that claim

	forgotten memory // the released key that this was before it was forgotten
}

// row is what a store keeps of a key.
type row struct {
	status      once.Status // Running even if its lease has lapsed, Done even if its outcome has expired
	attempt     int64
	owner       [16]byte // also of a released key
	fingerprint string
	ended       ending // the settlement as Done or Absent

	lease, outcome, key span // when the lease, the outcome and the key end

	firm bool // its claim is that of a transaction: if the lease lapses, the key is free
}

// memory is what remains of a released key. A claim that read it in time
// continues its count, even if other calls have seen the key forgotten before
// the claim was committed.
type memory struct {
	attempt int64
	owner   [16]byte
	key     span
}

// span is when something ends: between from and to, in microseconds.
type span struct{ from, to int64 }

// after returns the end of what began with a call and lasts for d. A process that
// has learned the store's clock counts from the latest time that it may be.
func after(c call, d time.Duration) span {
	return span{c.called + d.Microseconds() - tolerance, min(c.settled, never) + (d + c.blur).Microseconds() + tolerance}
}

// mayLast and mayBeOver report what a call may see. A process that has learned the
// store's clock decides by the earliest time that it may be.
func (s span) mayLast(c call) bool   { return c.called-c.blur.Microseconds() <= s.to }
func (s span) mayBeOver(c call) bool { return c.settled >= s.from }

// seen returns the states in which a call may find a record: with a lapsed
// lease, which is Unknown; with an expired outcome, which is Expired; or
// forgotten.
func (s state) seen(c call) []state {
	all := s.past(c)
	if s.keyEnds() && !s.key.mayLast(c) {
		return all
	}
	switch s.status {
	case once.Running:
		if s.lease.mayLast(c) {
			all = append(all, s)
		}
		if s.lease.mayBeOver(c) {
			if s.status = once.Unknown; s.firm {
				s.status = once.Absent
			}
			all = append(all, s)
		}
	case once.Done:
		if s.outcome.mayLast(c) {
			all = append(all, s)
		}
		if s.outcome.mayBeOver(c) {
			s.status = once.Expired
			all = append(all, s)
		}
	default:
		all = append(all, s)
	}
	return all
}

func (s state) keyEnds() bool {
	return s.status == once.Absent && s.attempt > 0 || s.status == once.Done || s.status == once.Expired
}

// past returns the states that s becomes when its key is forgotten, or was
// before that.
func (s state) past(c call) (all []state) {
	if s.keyEnds() && s.key.mayBeOver(c) {
		next := state{}
		if s.status == once.Absent {
			next.forgotten = memory{s.attempt, s.owner, s.key}
		}
		all = append(all, next)
	}
	if m := s.forgotten; s.attempt == 0 && m.attempt > 0 && (c.verb == claim || c.verb == claimFirmly || c.verb == transact) && m.key.mayLast(c) {
		all = append(all, state{row: row{attempt: m.attempt, owner: m.owner, key: m.key}})
	}
	return all
}

// claimed returns s after a claim. mine reports whether the claim was won.
func (s state) claimed(c call) (next state, mine bool) {
	r := c.req
	own := s.attempt > 0 && s.owner == r.Owner
	switch {
	case own && (s.status == once.Running || s.status == once.Unknown):
		return s, true
	case s.status == once.Absent && own && !s.firm: // a late claim after a release of its owner
		return s, false
	case s.status == once.Absent, s.status == once.Unknown && r.Attempt == s.attempt:
		return state{row: row{status: once.Running, attempt: s.attempt + 1, owner: r.Owner, fingerprint: string(r.Fingerprint),
			lease: after(c, r.Lease)}}, true
	default:
		return s, false
	}
}

// settledAs returns s after the settlement of c with a fence. ok is false if it
// must be refused.
func (s state) settledAs(c call, fence once.Fence) (next state, ok bool) {
	if s.attempt == 0 || s.attempt != fence.Attempt || s.owner != fence.Owner {
		return s, false
	}
	switch s.status {
	case once.Running, once.Unknown, once.Parked:
		if s.status == once.Parked && c.ends.status == once.Unknown {
			return s, false
		}
		next.row = row{status: c.ends.status, attempt: s.attempt, owner: s.owner, fingerprint: s.fingerprint, ended: c.ends}
		next.outcome, next.key = after(c, c.ends.keepOutcome), after(c, c.ends.keepKey)
		return next, true
	case once.Absent:
		return s, c.ends.status == once.Absent
	default: // Done, or Expired, where a repeated settlement is still recognised
		same := c.ends.outcome == s.ended.outcome || s.status == once.Expired && !c.compares
		return s, c.ends.status == once.Done && same
	}
}

// extended returns s with a new lease. A lease that ends while its extension is
// being committed may be seen as lapsed before it is seen as extended.
func (s state) extended(c call) (next state, ok bool) {
	inTime := s.status == once.Running || s.status == once.Unknown && s.lease != span{} && s.lease.mayLast(c)
	if !inTime || s.attempt != c.fence.Attempt || s.owner != c.fence.Owner {
		return s, false
	}
	s.status, s.lease = once.Running, after(c, c.lease)
	s.by, s.before = 0, row{}
	return s, true
}

// shows reports whether a call that finds s may return rec.
func (s state) shows(c call, rec once.Record) bool {
	owner := s.owner
	if s.status == once.Absent {
		owner = [16]byte{}
	}
	body := ""
	if s.status == once.Done {
		body = s.ended.outcome
	}
	return rec.Status == s.status && rec.Attempt == s.attempt && rec.Owner == owner &&
		string(rec.Fingerprint) == s.fingerprint && string(rec.Outcome.Body) == body && s.showsLease(c, rec.LeaseLeft)
}

func (s state) showsLease(c call, left time.Duration) bool {
	switch s.status {
	case once.Running:
		µs := left.Microseconds()
		return µs > 0 && µs <= s.lease.to-c.called+c.blur.Microseconds()+tolerance && µs >= s.lease.from-c.settled-tolerance
	case once.Unknown:
		return left < 0
	default:
		return left == 0
	}
}

// step returns the states that a call may lead to, given its reply. What the
// store's clock has ended stays so. Processes that have learned it may be apart:
// what has ended for one lasts for another, until somebody writes the record.
func step(s state, c call, r reply) (next []state) {
	if c.verb == conclude {
		return s.concluded(c, r)
	}
	for _, met := range s.seen(c) {
		for _, is := range met.step(c, r) {
			if c.blur > 0 && is == met {
				is = s
			}
			next = append(next, is)
		}
	}
	return next
}

func (s state) step(c call, r reply) []state {
	switch c.verb {
	case get:
		return s.when(r.result == unknown || s.shows(c, r.rec))
	case extend:
		next, ok := s.extended(c)
		return s.either(next, ok, c, r)
	case settle:
		next, ok := s.settledAs(c, c.fence)
		return s.either(next, ok, c, r)
	case claim, claimFirmly:
		next, mine := s.claimed(c)
		if c.verb == claimFirmly {
			next, mine = s.claimedFirmly(c)
		}
		switch {
		case r.result == unknown:
			return s.when(true, next)
		case r.inFlight():
			return []state{s}
		case mine: // a short lease may lapse before its claim returns, and other calls may have seen that
			return next.when(len(next.showing(c, r.rec)) > 0)
		default:
			return next.showing(c, r.rec)
		}
	default:
		return s.transacted(c, r)
	}
}

// either returns the states after a call that succeeds or is refused.
func (s state) either(next state, ok bool, c call, r reply) []state {
	if c.undone {
		next = s
	}
	switch r.result {
	case unknown:
		return s.when(true, next)
	case answered:
		return next.when(ok)
	default:
		return s.when(!ok || s.lapsing(c))
	}
}

// lapsing reports whether an extension may succeed or be refused.
func (s state) lapsing(c call) bool { return c.verb == extend && s.status == once.Unknown }

func (s state) transacted(c call, r reply) []state {
	claimed, mine := s.claimed(c)
	next, shown := claimed, len(claimed.showing(c, r.rec)) > 0
	if s.heldBefore(c, r) || r.result == unknown && s.attempt > 0 && s.owner == c.req.Owner { // the claim has locked nothing, so other settlements may come first
		mine, shown = true, true
	}
	settled := true
	if mine && !c.ends.none() {
		next, settled = claimed.settledAs(c, once.Fence{Owner: claimed.owner, Attempt: claimed.attempt})
	}
	if mine {
		next.by, next.before = 0, row{} // also if only the version of the row is another
	}
	if c.undone || !mine {
		next = s
	}
	switch {
	case r.result == unknown:
		return s.when(true, next)
	case r.inFlight():
		return []state{s}
	default:
		return next.when(shown && (settled || c.undone))
	}
}

// heldBefore reports whether the owner of a transaction's claim already had the
// key.
func (s state) heldBefore(c call, r reply) bool {
	return s.attempt > 0 && s.owner == c.req.Owner && r.rec.Owner == c.req.Owner && r.rec.Attempt == s.attempt &&
		string(r.rec.Fingerprint) == s.fingerprint && (r.rec.Status == once.Running || r.rec.Status == once.Unknown)
}

// showing returns the states of s, as time passes, that show rec.
func (s state) showing(c call, rec once.Record) []state {
	return slices.DeleteFunc(s.seen(c), func(seen state) bool { return !seen.shows(c, rec) })
}

// when returns s and others if ok, and else nothing.
func (s state) when(ok bool, others ...state) []state {
	if !ok {
		return nil
	}
	return append(others, s)
}

// model is the contract for one key.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, in, out any) []any {
		var next []any
		for _, n := range step(s.(state), in.(call), out.(reply)) {
			next = append(next, n)
		}
		return next
	},
}).ToModel()
