package httponce

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	defaultBudget            = time.Minute
	firstPause, longestPause = 500 * time.Millisecond, 10 * time.Second

	spareRetries  = 10 // what a Transport has at first, and at most
	earnedRetries = 0.1
	earnEvery     = 10 * time.Second

	// A connection is worth reading the rest of a short answer, not more.
	maxDrained = 16 << 10
	drainTime  = time.Second
)

// again decides about another attempt and the pause before it. It takes the retry from the allowance.
func (t *Transport) again(r *outgoing, attempt int, resp *http.Response, err error) (time.Duration, bool) {
	if !isHTTP(r.Request) || !r.body.rewinds() || attempt > cmp.Or(t.Retries, 4) || r.Context().Err() != nil {
		return 0, false
	}
	now := t.clock()
	after, may := mayHelp(resp, err, now)
	if !may {
		return 0, false
	}
	pause := jitter(attempt)
	if left := r.left(now); after > left || pause > left-after {
		return 0, false
	}
	return after + pause, t.spare.take(now)
}

// left is for how long another attempt may begin.
func (r *outgoing) left(now time.Time) time.Duration {
	until := r.until
	if deadline, ok := r.Context().Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	return until.Sub(now)
}

// mayHelp reports whether another attempt may have a better end, and how long the server wants to be left alone before it.
func mayHelp(resp *http.Response, err error, now time.Time) (after time.Duration, may bool) {
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
		return after, told // else it is an answer of the application
	}
	return 0, false
}

// retryAfter reads Retry-After: seconds, or a date, which is compared with the server's own. What is neither was not said.
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

// jitter is the random part of the pause after an attempt: rivals that failed together do not come back together.
func jitter(attempt int) time.Duration {
	return rand.N(min(firstPause<<min(attempt-1, 10), longestPause))
}

// allowance is the retries that the requests of a Transport share.
type allowance struct {
	mu   sync.Mutex
	used float64 // so that the zero value is full
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

// resendable is a request's body and how to have it again.
type resendable struct {
	first  io.ReadCloser // nil: none
	get    func() (io.ReadCloser, error)
	length int64
}

func (b *resendable) isEmpty() bool { return b.first == nil || b.first == http.NoBody }

func (b *resendable) rewinds() bool { return b.isEmpty() || b.get != nil }

// dress gives the body to attempt n.
func (b *resendable) dress(sent *http.Request, n int) (err error) {
	sent.Body, sent.GetBody, sent.ContentLength = b.first, b.get, b.length
	if n > 1 && !b.isEmpty() {
		sent.Body, err = b.get()
	}
	return err
}

func (t *Transport) maxBuffered() int64 {
	if t.Retries < 0 {
		return Never
	}
	return cmp.Or(t.MaxBody, 1<<20)
}

// bodyOf makes the body one that can be sent again: by reading it where nothing else helps and it is at most that long.
func bodyOf(req *http.Request, limit int64) (resendable, error) {
	b := resendable{req.Body, req.GetBody, req.ContentLength}
	if b.rewinds() || limit < 0 || b.length > limit {
		return b, nil
	}
	// A caller who gives up is not kept waiting by a body that nobody writes.
	stop := context.AfterFunc(req.Context(), func() { req.Body.Close() })
	text, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	switch {
	case !stop():
		return b, fmt.Errorf("httponce: while the request's body was read: %w", context.Cause(req.Context()))
	case err != nil:
		return b, fmt.Errorf("httponce: the request's body cannot be read: %w", err)
	case int64(len(text)) > limit:
		b.first = joined{io.MultiReader(bytes.NewReader(text), req.Body), req.Body}
		return b, nil
	}
	req.Body.Close()
	return b.buffered(text, isChunked(req)), nil
}

type joined struct {
	io.Reader
	io.Closer
}

func isChunked(req *http.Request) bool { return len(req.Trailer) > 0 || len(req.TransferEncoding) > 0 }

func (b resendable) buffered(text []byte, chunked bool) resendable {
	b.get = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	b.first, _ = b.get()
	if b.length <= 0 && !chunked {
		if b.length = int64(len(text)); b.length == 0 {
			b.first = http.NoBody // to net/http, a body of length 0 is one of unknown length
		}
	}
	return b
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// discard notes what an answer that nobody gets says about the key, and reads the rest of it, so that its connection is
// used again.
func discard(req *http.Request, resp *http.Response) {
	if resp == nil {
		return
	}
	body := resp.Body
	stalled := time.AfterFunc(drainTime, func() { body.Close() })
	defer stalled.Stop()
	noteKeyAnswer(req, resp)
	io.CopyN(io.Discard, resp.Body, maxDrained)
	resp.Body.Close()
}
