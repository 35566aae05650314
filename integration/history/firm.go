package history

import (
	"errors"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/effectively-once/once"
)

// firmKept returns how long a store keeps the count of attempts after the lease of
// a firm claim that has lapsed.
func firmKept(r once.ClaimRequest) time.Duration {
	if r.Expected != nil && r.Expected.KeepKey > 0 {
		return r.Expected.KeepKey
	}
	return 24 * time.Hour
}

// inTwo returns the operations of a transaction that claims firmly: others see
// its claim before its commit, and may see it no more afterwards, because the
// store takes it back if there is none. Only a call that has committed, or has
// lost its claim, tells when it ended. A request that takes a claim back may be
// late, and so may a claim whose request got no reply.
func (e event) inTwo() []porcupine.Operation {
	first, last := e, e
	first.verb, last.verb = claimFirmly, conclude
	if e.result != answered && !errors.Is(e.err, once.ErrConflict) {
		first.settled, last.settled = never, never
	}
	if e.entry.at == 0 {
		switch {
		case e.result == answered: // the claim was lost
			return []porcupine.Operation{first.operation()}
		case errors.Is(e.err, once.ErrConflict) && !errors.Is(e.err, once.ErrOutcomeUnknown):
			return nil
		}
		first.result = unknown
		return []porcupine.Operation{first.operation()}
	}
	first.settled, last.called = e.entry.at, e.entry.on
	if e.result != answered {
		first.result, first.rec = answered, e.entry.rec
		last.settled = never
	}
	return []porcupine.Operation{first.operation(), last.operation()}
}

// id identifies the call in a history, in which no two were called at one moment.
func (c call) id() int64 {
	if c.entry.on > 0 {
		return c.entry.on
	}
	return -c.called
}

// claimedFirmly returns s after the claim of a transaction. Unlike another one, it
// renews a claim that its owner has.
func (s state) claimedFirmly(c call) (next state, mine bool) {
	own := s.attempt > 0 && s.owner == c.req.Owner && (s.status == once.Running || s.status == once.Unknown)
	if next, mine = s.claimed(c); !mine {
		return s, false
	}
	if own {
		next.status, next.lease = once.Running, after(c, c.req.Lease)
	} else {
		next.firm = s.status == once.Absent // what is unknown stays so
	}
	if next.firm {
		next.key = after(c, c.req.Lease+firmKept(c.req))
	}
	next.by, next.before = c.id(), s.row
	return next, true
}

// concluded returns the states after the end of a transaction that has claimed
// firmly. It commits if its claim is the latest that was written, although its
// lease may have lapsed.
func (s state) concluded(c call, r reply) []state {
	if s.by != c.id() {
		return s.when(r.result != answered)
	}
	held := state{row: s.row}
	if s.firm {
		held.firm, held.key = false, span{}
		if s.status == once.Absent {
			held.status = once.Unknown
		}
	}
	next, settled := held, true
	if !c.ends.none() {
		next, settled = held.settledAs(c, once.Fence{Owner: held.owner, Attempt: held.attempt})
	}
	switch {
	case r.result == answered:
		return next.when(settled && !c.undone)
	case r.result == unknown && settled && !c.undone:
		return s.when(true, next, s.takenBack())
	default:
		return s.when(true, s.takenBack())
	}
}

// takenBack returns s after its firm claim was taken back. What was there before
// is there again. A key that was new keeps the count, and has no owner.
func (s state) takenBack() state {
	switch {
	case s.before.attempt > 0 && s.before.owner != s.owner:
		return state{row: s.before}
	case s.firm:
		is := state{row: s.row}
		is.status, is.owner, is.firm = once.Absent, [16]byte{}, false
		return is
	default: // its owner had the claim already
		return s
	}
}
