package httponce

import (
	"sync"
	"time"

	"github.com/effectively-once/once/internal/bucket"
)

// Limits bound what one caller may begin. They are kept in each process by itself: n processes let through up to n
// times as much. Repeats of known keys are always answered; while a caller is over its limits, each costs a look into
// the store. Zero: no limit.
type Limits struct {
	Open      int     // keys under way at the same time: repeats of one are no other
	PerSecond float64 // new keys, in the long run
	Burst     int     // new keys at once; default: as many as in one second, at least 1
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
	open  map[string]int // requests under way, by key
	spent bucket.Bucket
}

const sweepEvery = time.Minute

// newLimiter returns nil where there are no limits.
func newLimiter(l Limits) *limiter {
	if l.Open <= 0 && l.PerSecond <= 0 {
		return nil
	}
	return &limiter{limits: l, rate: bucket.Rate{PerSecond: l.PerSecond, Burst: l.Burst}, callers: make(map[string]*share)}
}

// enter counts a request, or says how long to wait. One with a key that is under way here costs nothing more: fresh is
// false. Whoever enters also leaves.
func (l *limiter) enter(caller, key string, now time.Time) (fresh bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	a := l.callers[caller]
	if a == nil {
		a = &share{open: make(map[string]int)}
		l.callers[caller] = a
	}
	if a.open[key] > 0 {
		a.open[key]++
		return false, 0
	}
	if l.limits.Open > 0 && len(a.open) >= l.limits.Open {
		return false, time.Second
	}
	if wait := a.spent.Take(l.rate, now); wait > 0 {
		return false, wait
	}
	a.open[key] = 1
	return true, 0
}

// leave gives back what was entered; unused says that a fresh key was not new.
func (l *limiter) leave(caller, key string, unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.callers[caller]
	if a.open[key]--; a.open[key] == 0 {
		delete(a.open, key)
	}
	if unused {
		a.spent.Return()
	}
}

// sweep forgets callers who have all that they may have.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	for caller, a := range l.callers {
		if len(a.open) == 0 && a.spent.Full(l.rate, now) {
			delete(l.callers, caller)
		}
	}
}
