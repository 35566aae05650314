package cas

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Clock tells the time of an engine.
type Clock interface {
	Now(context.Context) (Now, error)
}

// LearnedClock is the clock of a service, learned from the times in its
// responses. It needs the monotonic clock of this process only to measure how
// long ago that was: what the wall clock shows changes nothing. If the wall clock
// has moved against the monotonic one, which may have stood still while the
// machine was suspended, the service is asked again.
//
// A response that was requested at one moment and arrived at another, and has a
// time in it, says that the service had this time in between. So the service's
// clock is known up to an interval, which more responses make narrower, down to
// the time of the fastest of them. It grows by a two-thousandth of the time since
// the last response, for clocks that run apart. Callers take a lease for lapsed
// only at the earliest time that the service may have, and let leases end after
// the latest: a lease can be longer by the width of the interval of the process
// that takes it, and by that of the process that finds it lapsed, and is never
// shorter. What has lapsed for one process may run for another until somebody
// writes it.
//
// If a response contradicts the interval, the service's clock has been set, or
// this machine was suspended, and the interval begins anew. A machine that was
// stopped without its clocks noticing, such as one restored from a snapshot, has an
// interval that is too early until its next response. Servers of one service
// whose clocks disagree add their disagreement to the bound.
type LearnedClock struct {
	// Ask sends a request whose response is given to Learn. Now calls it if nothing
	// was learned yet, or not for a minute.
	Ask func(context.Context) error

	mu    sync.Mutex
	low   time.Duration // the service's time is at least the monotonic time plus this
	high  time.Duration // and at most this
	asOf  time.Duration // when that was so, by the monotonic clock
	ahead time.Duration // the wall clock, of the monotonic one, when the response was requested
	known bool
}

// began is when the monotonic clock of this package reads 0.
var began = time.Now()

const (
	staleAfter = time.Minute
	driftShare = 2000 // clocks run apart by at most a two-thousandth
)

// Learn notes that the service had a time between sent and now. resolution is
// that of the time: a header with whole seconds has a resolution of a second.
func (c *LearnedClock) Learn(sent, serverTime time.Time, resolution time.Duration) {
	c.learn(sent.Sub(began), time.Since(began), time.Duration(serverTime.UnixNano()), resolution)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = wallAhead(sent)
}

// wallAhead returns by how much the wall clock is ahead of the monotonic one.
func wallAhead(at time.Time) time.Duration { return time.Duration(at.UnixNano()) - at.Sub(began) }

func (c *LearnedClock) learn(sent, received, server, resolution time.Duration) {
	low, high := server-received, server+resolution-sent
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		wasLow, wasHigh := c.at(received)
		if both := max(low, wasLow); both <= min(high, wasHigh) {
			low, high = both, min(high, wasHigh)
		}
	}
	c.low, c.high, c.asOf, c.known = low, high, received, true
}

// at returns the interval at a later time.
func (c *LearnedClock) at(now time.Duration) (low, high time.Duration) {
	drift := max(0, now-c.asOf) / driftShare
	return c.low - drift, c.high + drift
}

// Now returns what is known of the service's time.
func (c *LearnedClock) Now(ctx context.Context) (Now, error) {
	if now, fresh := c.now(time.Now()); fresh {
		return now, nil
	}
	if err := c.Ask(ctx); err != nil {
		return Now{}, err
	}
	now, fresh := c.now(time.Now())
	if !fresh {
		return Now{}, errors.New("cas: the service told no time: its response has no Date or no request ID of the service, as if " +
			"something else had answered, or a clock of this machine was set meanwhile")
	}
	return now, nil
}

func (c *LearnedClock) now(at time.Time) (now Now, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, apart := at.Sub(began), wallAhead(at)-c.ahead
	low, high := c.at(since)
	now.earliest = Instant((since + low) / time.Microsecond)
	now.latest = Instant((since+high)/time.Microsecond) + 1
	fresh = c.known && since-c.asOf < staleAfter && max(apart, -apart) < time.Second
	return now, fresh
}
