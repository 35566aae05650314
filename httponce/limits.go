package httponce

import (
	"sync"
	"time"

	"github.com/effectively-once/once/internal/bucket"
)

// Limits bounds what one caller may have in progress. It applies before a body
// is read. Each process counts by itself, so n processes allow up to n times as
// much. Repeats of known keys are answered unless there are too many at once.
// While a caller is over its limits, each repeat costs one read of the store.
// Zero fields mean no limit.
type Limits struct {
	Open      int     // keys in progress at once; repeats of a key do not add to it
	Waiting   int     // waiting repeats, and all repeats while the caller is over Open or PerSecond; further ones get 409 at once
	PerSecond float64 // average rate of new keys
	Burst     int     // new keys at once; default: one second of PerSecond, at least 1
}

// limiter counts requests by caller. It forgets callers that have their whole
// allowance.
type limiter struct {
	limits Limits
	rate   bucket.Rate

	mu      sync.Mutex
	callers map[string]*usage
	swept   time.Time
}

// usage is what a caller has in progress.
type usage struct {
	open    map[string]*openKey
	waiting int // repeats
	spent   bucket.Bucket
}

// openKey is a key in progress. It has taken one token of the rate.
type openKey struct {
	requests int
	used     bool // one of the requests has started something new
}

const (
	sweepEvery = time.Minute
	whenOpen   = time.Second // Retry-After if another request has to end first
)

// newLimiter returns nil if there are no limits.
func newLimiter(l Limits) *limiter {
	if l.Open <= 0 && l.PerSecond <= 0 && l.Waiting <= 0 {
		return nil
	}
	return &limiter{limits: l, rate: bucket.Rate{PerSecond: l.PerSecond, Burst: l.Burst}, callers: make(map[string]*usage)}
}

// standing is what a request counts as in the limits of its caller.
type standing int

const (
	uncounted  standing = iota
	firstOfKey          // counted: no other request has this key here
	repeat              // counted: the key is in progress here
	overLimit           // not counted: only a known key may continue, see enterKnown
	known               // counted: a known key of a caller that is over its limits
	tooMany             // not counted: too many repeats
)

// place is a request's place in the limits of its caller. The zero place counts
// as nothing.
type place struct {
	limiter     *limiter
	caller, key string
	standing    standing
}

// enter counts a request. If the caller is over its limits, it returns how long
// to wait.
func (l *limiter) enter(caller, key string, now time.Time) (p place, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	u := l.usage(caller)
	p = place{limiter: l, caller: caller, key: key}
	if open := u.open[key]; open != nil {
		if p.standing = u.countRepeat(repeat, l.limits.Waiting); p.standing == repeat {
			open.requests++
		}
		return p, 0
	}
	p.standing = overLimit
	if l.limits.Open > 0 && len(u.open) >= l.limits.Open {
		return p, whenOpen
	}
	if wait := u.spent.Take(l.rate, now); wait > 0 {
		return p, wait
	}
	u.open[key] = &openKey{requests: 1}
	p.standing = firstOfKey
	return p, 0
}

// usage returns the usage of a caller.
func (l *limiter) usage(caller string) *usage {
	u := l.callers[caller]
	if u == nil {
		u = &usage{open: make(map[string]*openKey)}
		l.callers[caller] = u
	}
	return u
}

// countRepeat counts a repeat and returns as, or tooMany.
func (u *usage) countRepeat(as standing, limit int) standing {
	if limit > 0 && u.waiting >= limit {
		return tooMany
	}
	u.waiting++
	return as
}

// enterKnown counts a request that is over the limits and has a known key.
func (p *place) enterKnown() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	p.standing = p.limiter.usage(p.caller).countRepeat(known, p.limiter.limits.Waiting)
}

// leave gives the place back. unused means that the request has started nothing
// new. If that is true of all requests with the key, the key was not new, and
// its token is returned. Further calls do nothing.
func (p *place) leave(unused bool) {
	was := p.standing
	p.standing = uncounted
	switch was {
	case uncounted, overLimit, tooMany:
		return
	}
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	u := p.limiter.callers[p.caller]
	if was == repeat || was == known {
		u.waiting--
	}
	if was == known {
		return
	}
	open := u.open[p.key]
	open.used = open.used || !unused
	if open.requests--; open.requests > 0 {
		return
	}
	delete(u.open, p.key)
	if !open.used {
		u.spent.Return()
	}
}

// sweep forgets callers that have their whole allowance.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	for caller, u := range l.callers {
		if len(u.open) == 0 && u.waiting == 0 && u.spent.Full(l.rate, now) {
			delete(l.callers, caller)
		}
	}
}
