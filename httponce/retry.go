package httponce

import (
	"crypto/tls"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/chance"
)

const (
	defaultBudget            = time.Minute
	firstPause, longestPause = 500 * time.Millisecond, 10 * time.Second

	spareRetries  = 10 // at first, and the maximum
	earnedRetries = 0.1
	earnEvery     = 10 * time.Second

	// Reading the rest of a short response is cheaper than a new connection.
	maxDrained = 16 << 10
	drainTime  = time.Second
)

// isRetryable reports whether another attempt may succeed, and the delay that
// the server asks for.
func isRetryable(resp *http.Response, err error, now time.Time) (after time.Duration, ok bool) {
	if err != nil {
		var refused *tls.CertificateVerificationError
		return 0, !errors.As(err, &refused)
	}
	after, told := retryAfter(resp.Header, now)
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return after, true
	case http.StatusConflict:
		return after, told // without Retry-After, it is a response of the application
	}
	return 0, false
}

// retryAfter parses Retry-After: seconds, or a date, which is compared with the
// Date of the server. told is false for any other value.
func retryAfter(h http.Header, now time.Time) (after time.Duration, told bool) {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, math.MaxInt64/uint64(time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0), true
}

// jitter returns the random part of the pause after an attempt. Clients that
// failed together do not retry together.
func jitter(attempt int) time.Duration {
	return chance.N(min(firstPause<<min(attempt-1, 10), longestPause))
}

// allowance is the retries that the requests of a Transport share. The zero
// value is full.
type allowance struct {
	mu   sync.Mutex
	used float64
	last time.Time
}

func (a *allowance) earn(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = max(a.used-earnedRetries, 0)
	a.passTime(now)
}

func (a *allowance) take(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passTime(now)
	if a.used+1 > spareRetries {
		return false
	}
	a.used++
	return true
}

func (a *allowance) passTime(now time.Time) {
	if passed := now.Sub(a.last); passed > 0 {
		a.used = max(a.used-passed.Seconds()/earnEvery.Seconds(), 0)
		a.last = now
	}
}
