package httponce

import (
	"sync"
	"time"
)

// Limits bound what one caller may begin. They are kept in each process by itself: n processes let through up to n times as
// much. Repeats of known keys are always answered. Zero: no limit.
type Limits struct {
	Open      int     // requests with new keys at the same time
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
	open   int
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

// enter counts a new key, or says how long to wait. Whoever enters also leaves.
func (l *limiter) enter(caller string, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	a := l.callers[caller]
	if a == nil {
		a = &share{tokens: float64(l.limits.Burst), at: now}
		l.callers[caller] = a
	}
	if l.limits.Open > 0 && a.open >= l.limits.Open {
		return time.Second
	}
	if l.limits.PerSecond > 0 {
		l.refill(a, now)
		if a.tokens < 1 {
			return max(time.Duration((1-a.tokens)/l.limits.PerSecond*float64(time.Second)), 1) // 0 would let it in
		}
		a.tokens--
	}
	a.open++
	return 0
}

func (l *limiter) refill(a *share, now time.Time) {
	a.tokens = min(float64(l.limits.Burst), a.tokens+max(now.Sub(a.at), 0).Seconds()*l.limits.PerSecond)
	a.at = now
}

// leave gives back what was entered; unused says that the key was not new.
func (l *limiter) leave(caller string, unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.callers[caller]
	a.open--
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
		if l.refill(a, now); a.open == 0 && (l.limits.PerSecond <= 0 || a.tokens >= float64(l.limits.Burst)) {
			delete(l.callers, caller)
		}
	}
}
