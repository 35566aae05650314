package httponce

import (
	"sync"
	"time"
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

	mu      sync.Mutex
	callers map[string]*share
	swept   time.Time
}

type share struct {
	open   map[string]int // requests under way, by key
	tokens float64
	at     time.Time // when tokens was right
}

const sweepEvery = time.Minute

// newLimiter returns nil where there are no limits.
func newLimiter(l Limits) *limiter {
	if l.Open <= 0 && l.PerSecond <= 0 {
		return nil
	}
	if l.Burst <= 0 {
		l.Burst = max(int(l.PerSecond), 1)
	}
	return &limiter{limits: l, callers: make(map[string]*share)}
}

// enter counts a request, or says how long to wait. One with a key that is under way here costs nothing more: fresh is
// false. Whoever enters also leaves.
func (l *limiter) enter(caller, key string, now time.Time) (fresh bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	a := l.callers[caller]
	if a == nil {
		a = &share{open: make(map[string]int), tokens: float64(l.limits.Burst), at: now}
		l.callers[caller] = a
	}
	if a.open[key] > 0 {
		a.open[key]++
		return false, 0
	}
	if l.limits.Open > 0 && len(a.open) >= l.limits.Open {
		return false, time.Second
	}
	if l.limits.PerSecond > 0 {
		l.refill(a, now)
		if a.tokens < 1 {
			return false, max(time.Duration((1-a.tokens)/l.limits.PerSecond*float64(time.Second)), 1) // 0 would let it in
		}
		a.tokens--
	}
	a.open[key] = 1
	return true, 0
}

func (l *limiter) refill(a *share, now time.Time) {
	a.tokens = min(float64(l.limits.Burst), a.tokens+max(now.Sub(a.at), 0).Seconds()*l.limits.PerSecond)
	a.at = now
}

// leave gives back what was entered; unused says that a fresh key was not new.
func (l *limiter) leave(caller, key string, unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.callers[caller]
	if a.open[key]--; a.open[key] == 0 {
		delete(a.open, key)
	}
	if unused && l.limits.PerSecond > 0 {
		a.tokens = min(float64(l.limits.Burst), a.tokens+1)
	}
}

// sweep forgets callers who have all that they may have.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	for caller, a := range l.callers {
		if l.refill(a, now); len(a.open) == 0 && (l.limits.PerSecond <= 0 || a.tokens >= float64(l.limits.Burst)) {
			delete(l.callers, caller)
		}
	}
}
