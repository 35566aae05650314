package models

import (
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// Write is the record of a key as a store has written it.
type Write struct {
	By     string // the process that wrote it
	Person bool   // which is a person's

	Status  once.Status // never Expired. Absent with Attempt 0: the key is forgotten
	Attempt int64
	Owner   [16]byte // may be zero if it is Absent

	// All times are the store's.
	Lease   time.Time // when it ends, or ended: Running and Unknown
	Keep    time.Time // when the key may be forgotten: Absent and Done
	Updated time.Time // the time of the change or, if clocks are learned, the latest that its writer took it for

	// If clocks are learned, the writer knew the time within an interval, and has looked
	// at the record at some time before Decided.
	Within  time.Duration
	Decided time.Time
}

// Life checks that each change of a record is one that the model key.pml makes.
// It knows the record before and after, and the process that changed it.
//
// It looks at one change after the other: that the model makes all of them in this
// order is not checked. Nor is what no record shows: which attempts have had their
// effect, what Lookup has answered, whether a key is too old to be sent again, and
// how long a call has relied on a lease. A takeover, and what another process than
// the holder settles, is judged by the latest moment at which it can have been
// decided, and an extension by the earliest: a change that is wrong by less than
// what is known of the time is not noticed. A process that asks about its own
// claim counts as its holder.
type Life struct {
	Kind       Kind
	SettleTime time.Duration
	Learned    bool // processes know the store's time only within an interval

	// Collects is set for a store whose transactions are one request. It may write
	// their claims first, and take them back, which the model leaves out: of a Tx, only
	// what has committed is looked at.
	Collects bool

	is    Write
	by    string // the process that claimed
	again bool   // the attempt has taken over one that was unknown
	slow  bool   // its end was reported, or again, after its end

	seen map[string]bool
}

// Next returns an error if the model does not make this change. Life goes on from
// what was written.
func (l *Life) Next(w Write) error {
	if !l.Learned {
		w.Decided = w.Updated
	}
	if l.Collects && l.Kind == Tx && w.Status != once.Done && w.Attempt > 0 {
		return nil
	}
	was := l.is
	if was.Attempt > 0 && closed(was.Status) && (w.Attempt == 0 || l.anew(w)) {
		// It was forgotten, and this may be the first claim after it. The model forgets
		// only the first of its keys, and what forgets knows no kinds.
		early := was.Keep.After(w.Decided)
		forgotten := Step{kind: min(l.Kind, Park), verb: forgets, from: l.state(w.Decided), to: isNew, odd: early}
		l.is, l.by, l.again, l.slow = Write{}, "", false, false
		if err := l.judge(forgotten, was, w); err != nil || w.Attempt == 0 {
			l.follow(w)
			return err
		}
	}
	was = l.is
	step, err := l.step(w)
	if err == nil {
		err = l.judge(step, was, w)
	}
	l.follow(w)
	return err
}

// anew reports whether w is the first claim after the key was forgotten. Its owner
// may be the last one, if it repeats a call for so long.
func (l *Life) anew(w Write) bool {
	over := !l.is.Keep.After(w.Decided)
	if l.Collects && l.Kind == Tx {
		return over
	}
	return w.Attempt == 1 && (w.Status == once.Running || w.Status == once.Done) && (over || w.Owner != l.is.Owner)
}

// step returns the change from the record as it is.
func (l *Life) step(w Write) (Step, error) {
	was, who := l.is, l.who(w)
	step := Step{kind: l.Kind, who: who, from: l.state(w.Decided)}
	sameFence := w.Attempt == was.Attempt && (w.Owner == was.Owner || w.Status == once.Absent && w.Owner == [16]byte{})
	switch {
	case l.Kind == Tx && w.Status == once.Done && !sameFence:
		step.who, step.verb, step.to = Holder, commits, isDone
	case sameFence && w.Status == once.Running:
		step.who, step.verb, step.from, step.to = Holder, extends, l.state(w.Updated.Add(-w.Within)), isRunning
	case sameFence:
		step.verb, step.to = settles, ended(w.Status)
		step.again = l.again && who == Holder && w.Status == once.Absent
		step.odd = w.Status == once.Absent && who == Other && l.early(w)
		return step, nil
	case w.Status == once.Running:
		step.who, step.verb, step.to = Holder, claims, isRunning
		step.odd = was.Attempt > 0 && w.Owner == was.Owner
	default:
		return step, fmt.Errorf("models: %v is settled under another fence: %v", was, w)
	}
	if next := was.Attempt + 1; step.verb != extends && w.Attempt != next && !(l.Collects && l.Kind == Tx && w.Attempt > next) {
		return step, fmt.Errorf("models: the attempt after %v is %v", was, w)
	}
	return step, nil
}

// who returns who has written.
func (l *Life) who(w Write) Who {
	switch {
	case w.Person:
		return Person
	case w.By == l.by:
		return Holder
	}
	return Other
}

// state returns the state of the record at a time.
func (l *Life) state(at time.Time) state {
	switch is := l.is; is.Status {
	case once.Absent:
		if is.Attempt == 0 {
			return isNew
		}
		return isFree
	case once.Running:
		if is.Lease.After(at) {
			return isRunning
		}
		return isLapsed
	default:
		return ended(is.Status)
	}
}

// early reports whether the attempt has ended for less than SettleTime. One that
// was reported late, or twice, has ended before its record says so.
func (l *Life) early(w Write) bool {
	state := l.state(w.Decided)
	return (state == isLapsed || state == isUnknown) && l.is.Lease.Add(l.SettleTime).After(w.Decided) && !l.slow
}

// ended returns the state of a record that is not claimed.
func ended(s once.Status) state {
	switch s {
	case once.Unknown:
		return isUnknown
	case once.Parked:
		return isParked
	case once.Done:
		return isDone
	}
	return isFree
}

func closed(s once.Status) bool { return s == once.Absent || s == once.Done }

// judge returns an error if the model does not make a step.
func (l *Life) judge(step Step, was, w Write) error {
	if l.seen == nil {
		l.seen = make(map[string]bool)
	}
	l.seen[step.String()] = true
	switch onlyLearned, makes := allowed[step.String()]; {
	case !makes:
		return fmt.Errorf("models: key.pml does not make this step: %v\nfrom %v\nto   %v", step, was, w)
	case onlyLearned && !l.Learned:
		return fmt.Errorf("models: key.pml makes this step only with a learned clock: %v\nfrom %v\nto   %v", step, was, w)
	}
	return nil
}

// follow makes w what the record is.
func (l *Life) follow(w Write) {
	was := l.is
	newClaim := w.Attempt != was.Attempt || w.Status == once.Running && w.Owner != was.Owner
	switch {
	case newClaim:
		l.by, l.again, l.slow = w.By, was.Attempt > 0 && was.Status != once.Absent, false
	case w.Status != once.Running:
		l.slow = l.slow || !was.Lease.After(w.Decided)
		w.Owner = was.Owner // which a reader of a free record does not see
	}
	l.is = w
}

// Is reports whether a record is as it was last written.
func (l *Life) Is(w Write) bool {
	return l.is.Attempt == w.Attempt && l.is.Status == w.Status && l.is.Updated.Equal(w.Updated)
}

// Seen returns the steps that were made.
func (l *Life) Seen() map[string]bool { return l.seen }

func (w Write) String() string {
	if w.Attempt == 0 {
		return "no record"
	}
	text := fmt.Sprintf("%v attempt %d of %x by %s at %s", w.Status, w.Attempt, w.Owner[:3], w.By, clockTime(w.Updated))
	switch w.Status {
	case once.Running, once.Unknown:
		text += ", lease until " + clockTime(w.Lease)
	case once.Absent, once.Done:
		text += ", kept until " + clockTime(w.Keep)
	}
	return text
}

func clockTime(t time.Time) string { return t.UTC().Format("15:04:05.000000") }
