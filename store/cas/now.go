package cas

import (
	"math"
	"time"
)

// Instant is a time in microseconds since 1970, by the clock of the engine.
type Instant int64

// Time returns the instant as a time.
func (i Instant) Time() time.Time { return time.UnixMicro(int64(i)) }

// add returns the instant after d. A d that is too long lasts for ever.
func (i Instant) add(d time.Duration) Instant {
	us := Instant(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++ // a lease is never shorter than it was asked for
	}
	if us > 0 && i > math.MaxInt64-us {
		return math.MaxInt64
	}
	return i + us
}

func (i Instant) sub(before Instant) time.Duration {
	us := int64(i - before)
	switch {
	case us > math.MaxInt64/int64(time.Microsecond):
		return math.MaxInt64
	case us < math.MinInt64/int64(time.Microsecond):
		return math.MinInt64
	}
	return time.Duration(us) * time.Microsecond
}

// Now is what is known of the time: the clock of the engine is in an interval.
// Each method answers from the end that is safe for its question, so nothing
// compares an instant with a time itself:
//
//	a lease has lapsed, a time to keep has passed, a message is due   Passed
//	until when a lease lasts, or a record is kept                     In
//	a time that a change is given                                     Changed
//	a time from which an age counts that must not be too short        Began
//	it has rested, or been settled, for some time                     AtLeastSince
//	it may be as old as that: a key that the provider forgets         AtMostSince
//	how long it can still be relied on                                AtLeastUntil
//	how long it can still be in the way                               AtMostUntil
type Now struct{ earliest, latest Instant }

// Exactly returns the time of an engine whose clock is read.
func Exactly(at Instant) Now { return Now{at, at} }

// Between returns the time of an engine of which no more is known.
func Between(earliest, latest Instant) Now { return Now{earliest, latest} }

// Earliest returns the beginning of the interval, for a condition that the engine
// evaluates, in the place of Passed.
func (n Now) Earliest() Instant { return n.earliest }

// Passed reports whether an instant has passed for certain.
func (n Now) Passed(at Instant) bool { return at <= n.earliest }

// In returns an instant that is not less than d from now.
func (n Now) In(d time.Duration) Instant { return n.latest.add(d) }

// Changed returns the instant of a change that is made now, or later.
func (n Now) Changed() Instant { return n.latest }

// Began returns the instant of what begins now, or earlier.
func (n Now) Began() Instant { return n.earliest }

// AtLeastSince returns the shortest time that can have passed since an instant.
func (n Now) AtLeastSince(at Instant) time.Duration { return n.earliest.sub(at) }

// AtMostSince returns the longest time that can have passed since an instant.
func (n Now) AtMostSince(at Instant) time.Duration { return n.latest.sub(at) }

// AtLeastUntil returns the shortest time that can be left until an instant.
func (n Now) AtLeastUntil(at Instant) time.Duration { return at.sub(n.latest) }

// AtMostUntil returns the longest time that can be left until an instant.
func (n Now) AtMostUntil(at Instant) time.Duration { return at.sub(n.earliest) }
