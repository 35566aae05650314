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

// limiter counts by caller. It remembers those only who would notice.
type limiter struct {
	limits Limits
	rate   bucket.Rate

	mu      sync.Mutex
	callers map[string]*share
	swept   time.Time
}

type share struct {
	open    map[string]*openKey // keys under way
	waiting int                 // requests under way whose key another one has brought
	spent   bucket.Bucket
}

// openKey is a key under way, which has taken one from the rate.
type openKey struct {
	requests int
	used     bool // one of them has begun something new
}

const (
	sweepEvery = time.Minute
	whenOpen   = time.Second // to come back, where a request has to end first
)

// newLimiter returns nil where there are no limits.
func newLimiter(l Limits) *limiter {
	if l.Open <= 0 && l.PerSecond <= 0 && l.Waiting <= 0 {
		return nil
	}
	return &limiter{limits: l, rate: bucket.Rate{PerSecond: l.PerSecond, Burst: l.Burst}, callers: make(map[string]*share)}
}

// admission is how a request stands to the limits of its caller.
type admission int

const (
	admitted  admission = iota // with a key that nobody else has brought
	repeated                   // with a key that is under way here
	overLimit                  // not counted: the key has to be known
	tooMany                    // not counted: too many repeats
)

// enter counts a request, or says how long to wait. Whoever is counted also
// leaves.
func (l *limiter) enter(caller, key string, now time.Time) (a admission, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	s := l.share(caller)
	if open := s.open[key]; open != nil {
		if !s.wait(l.limits.Waiting) {
			return tooMany, whenOpen
		}
		open.requests++
		return repeated, 0
	}
	if l.limits.Open > 0 && len(s.open) >= l.limits.Open {
		return overLimit, whenOpen
	}
	if wait := s.spent.Take(l.rate, now); wait > 0 {
		return overLimit, wait
	}
	s.open[key] = &openKey{requests: 1}
	return admitted, 0
}

// share returns the share of a caller.
func (l *limiter) share(caller string) *share {
	s := l.callers[caller]
	if s == nil {
		s = &share{open: make(map[string]*openKey)}
		l.callers[caller] = s
	}
	return s
}

// wait counts a repeat, unless there are too many.
func (s *share) wait(limit int) bool {
	if limit > 0 && s.waiting >= limit {
		return false
	}
	s.waiting++
	return true
}

// leave gives back what a request was counted as; unused says that it has begun
// nothing new. If that is so of all requests of the key, the key was not new.
func (l *limiter) leave(caller, key string, a admission, unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.callers[caller]
	if a == repeated {
		s.waiting--
	}
	open := s.open[key]
	open.used = open.used || !unused
	if open.requests--; open.requests > 0 {
		return
	}
	delete(s.open, key)
	if !open.used {
		s.spent.Return()
	}
}

// enterKnown counts a repeat of a key that is not under way here, of a caller
// over its limits. It reports false if there are too many. Whoever is counted
// calls leaveKnown.
func (l *limiter) enterKnown(caller string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.share(caller).wait(l.limits.Waiting)
}

func (l *limiter) leaveKnown(caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.callers[caller].waiting--
}

// sweep forgets callers who have all that they may have.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	for caller, a := range l.callers {
		if len(a.open) == 0 && a.waiting == 0 && a.spent.Full(l.rate, now) {
			delete(l.callers, caller)
		}
	}
}
