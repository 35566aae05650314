package httponce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/resent"
)

// Never disables retries or buffering in the fields of [Transport] that accept
// it.
const Never = -1

// Transport is an http.RoundTripper that retries requests safely. It gives each
// request that changes something a key (see [KeyHeader]), and resends it with
// the same key and body if the connection fails or the server says that it may
// succeed later. The zero value is valid. A Transport is safe for concurrent
// use, and must not be copied after its first use.
//
// Use it for servers that honour the key. A server that ignores it may do the
// work once per attempt. Use one Transport per service, so that an outage of
// one service does not use up the retries for the others.
//
// Transport takes the key from the first of these that exists:
//
//   - the request's own header, unchanged. A header without values marks the
//     request as idempotent, and nothing is sent.
//   - [WithKey].
//   - key.String() of the claim that the request is made under (see
//     [once.ClaimFrom]), so that one name is used end to end.
//   - a random key. If a client above sends the same request again after it has
//     failed, the key is that of before.
//
// The same request is one with the same *url.URL, method and body, as retrying
// clients send it that keep their [http.Request]. It has failed without a
// response, after a response that Transport would retry or with 5xx, or if its
// body broke off. A body that can be read only once counts as the same. Transport cannot recognise a client above that makes a new
// request for each attempt, and a server then does the work once per attempt:
// use WithKey, or set the header, once for all attempts. The last 1024 failed
// requests are remembered.
//
// GET, HEAD, OPTIONS and TRACE requests get no key. Work that makes several
// different requests must name each, or servers refuse the second as a
// mismatch:
//
//	ctx = httponce.WithKey(ctx, key.Step("capture").String())
//
// Transport retries requests that fail without a response, unless their context
// has ended or the server's certificate was refused. It also retries responses
// with 408, 425, 429, 502, 503, 504, and 409 with a Retry-After, which means
// that the first attempt is still running or that its outcome is being
// determined. It never retries other responses: 500 means that the server
// failed at this request, and the response may be recorded.
//
// The delay is Retry-After, plus a random time of up to half a second at first,
// and up to twice as much each time. After the last attempt, the caller gets
// the last response or error. That error is a dial error (see
// [once.IsDialError]) only if every attempt failed with one and no redirect was
// followed.
//
// A response whose body breaks off is not retried; resend the request under the
// same key. A redirect with 307 or 308 keeps the key and the body, wherever it
// leads, and has its own attempts. Beneath Transport, net/http resends a
// request with a key by itself if it meets a connection that was closed while
// idle. That does not count as an attempt.
type Transport struct {
	// Base makes the attempts. Default: http.DefaultTransport. Transport does not
	// limit the time of an attempt. To do so, set the ResponseHeaderTimeout of
	// Base; the next attempt follows.
	Base http.RoundTripper

	// Retries is how many attempts may follow the first. Default: 4. Never
	// disables retries. All requests of a Transport also share an allowance, so
	// that retries do not multiply the load on a server that is down: ten retries
	// at first, then one per ten requests and one every ten seconds.
	Retries int

	// Budget is how long after the start of a request another attempt may start.
	// If Retry-After exceeds what is left of it, or of the context, there is no
	// further attempt. Default: 1 minute, enough for the longest Retry-After of a
	// [Handler] with the default lease.
	Budget time.Duration

	// MaxBody is how many bytes of a body without GetBody are buffered for
	// retries. A larger body is streamed and sent once. Default: 1 MiB. Never
	// disables buffering, which a request needs that writes its body while it
	// reads the response.
	MaxBody int64

	// Bare sends the key without the quotes of a structured field, for servers
	// that expect plain text.
	Bare bool

	spare  allowance
	failed resent.Keys
	now    func() time.Time
	sleep  func(context.Context, time.Duration) error
}

type contextKey int

const (
	keyOfContext contextKey = iota
	attemptsOfContext
)

// WithKey returns a context whose requests use this key, which has 1 to 255
// printable ASCII characters. Different requests need different keys.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfContext, key)
}

// Replayed reports whether the server marked the response as replayed. It was
// first given to another request with the same key, or to an attempt of this
// request whose response was lost.
func Replayed(resp *http.Response) bool {
	return strings.EqualFold(resp.Header.Get(ReplayedHeader), "true")
}

// Attempts returns how many attempts a [Transport] made to get this response,
// counted from the last redirect. It returns 0 for a response that did not come
// from a Transport.
func Attempts(resp *http.Response) int {
	if resp.Request == nil {
		return 0
	}
	n, _ := resp.Request.Context().Value(attemptsOfContext).(int)
	return n
}

// RoundTrip sends the request, retrying it as described for [Transport].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := t.begin(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		sent, err := r.attempt(attempt)
		if err != nil {
			t.ended(r, nil, err)
			return nil, err
		}
		resp, err := t.base().RoundTrip(sent)
		if resp != nil && resp.Request == nil {
			resp.Request = sent
		}
		pause, ok := t.retry(r, attempt, resp, err)
		if !ok {
			noteKeyAnswer(sent, resp)
			t.ended(r, resp, err)
			return resp, r.afterAttempts(attempt, err)
		}
		r.noteAttempt(err)
		discard(sent, resp)
		if t.wait(req.Context(), pause) != nil {
			t.ended(r, nil, context.Cause(req.Context()))
			return nil, interrupted(req.Context(), resp, err)
		}
	}
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) clock() time.Time {
	if t.now == nil {
		return time.Now()
	}
	return t.now()
}

func (t *Transport) wait(ctx context.Context, d time.Duration) error {
	if t.sleep == nil {
		return backoff.Sleep(ctx, d)
	}
	return t.sleep(ctx, d)
}

// outgoing is a request in progress.
type outgoing struct {
	*http.Request // the caller's, never modified
	body          resendableBody
	key           []string // values of KeyHeader; nil: none is added
	random        bool     // the key was made by Transport
	until         time.Time

	mayHaveArrived atomic.Bool // an attempt may have reached the server
}

func (t *Transport) begin(req *http.Request) (*outgoing, error) {
	r := &outgoing{Request: req}
	var err error
	if r.body, err = resendable(req, t.maxBuffered()); err != nil {
		return nil, err
	}
	if err = t.setKey(r); err != nil {
		return nil, err
	}
	now := t.clock()
	r.until = now.Add(cmp.Or(t.Budget, defaultBudget))
	t.spare.earn(now)
	return r, nil
}

// retry reports whether another attempt follows, and the pause before it. It
// takes the retry from the allowance.
func (t *Transport) retry(r *outgoing, attempt int, resp *http.Response, err error) (pause time.Duration, ok bool) {
	if !isHTTP(r.Request) || !r.body.isResendable() || attempt > cmp.Or(t.Retries, 4) || r.Context().Err() != nil {
		return 0, false
	}
	now := t.clock()
	after, ok := isRetryable(resp, err, now)
	if !ok {
		return 0, false
	}
	random := jitter(attempt)
	if left := r.timeLeft(now); after > left || random > left-after {
		return 0, false
	}
	return after + random, t.spare.take(now)
}

// timeLeft returns how long from now another attempt may start.
func (r *outgoing) timeLeft(now time.Time) time.Duration {
	until := r.until
	if deadline, ok := r.Context().Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	return until.Sub(now)
}

func (t *Transport) maxBuffered() int64 {
	if t.Retries < 0 {
		return Never
	}
	return cmp.Or(t.MaxBody, 1<<20)
}

// discard reads the rest of a response that the caller does not get, so that its
// connection can be reused. It notes what the response says about the key.
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

// isHTTP reports false for URLs that no attempt can reach, and for other
// protocols, which Base may know.
func isHTTP(req *http.Request) bool {
	return req.URL != nil && req.URL.Host != "" && (req.URL.Scheme == "http" || req.URL.Scheme == "https")
}

// attempt returns the request for attempt n. It is a copy, because Base may
// change it. It shares the trailers, which the caller sets while the body is
// read.
func (r *outgoing) attempt(n int) (*http.Request, error) {
	// Base may send an attempt twice and return only the error of the second
	// connection.
	connected := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { r.mayHaveArrived.Store(true) }}
	sent := r.WithContext(httptrace.WithClientTrace(context.WithValue(r.Context(), attemptsOfContext, n), connected))
	if sent.Header = r.Header.Clone(); sent.Header == nil {
		sent.Header = http.Header{}
	}
	if r.key != nil {
		sent.Header[KeyHeader] = r.key
	}
	return sent, r.body.setOn(sent, n)
}

func (t *Transport) setKey(r *outgoing) (err error) {
	if _, own := r.Header[KeyHeader]; own || isSafe(r.Method) {
		return nil
	}
	chosen, ok := chosenKey(r.Context())
	r.random = !ok && r.URL != nil
	if r.key = keyBefore(r.Request); r.key != nil {
		return nil
	}
	if r.random {
		if key, again := t.failed.Take(r.id(), r.print); again {
			r.key = []string{key}
			return nil
		}
	}
	if !ok {
		chosen = randomKey()
	}
	key, err := t.format(chosen)
	if err != nil {
		return fmt.Errorf("httponce: the key of WithKey: %w", err)
	}
	r.key = []string{key}
	return nil
}

// keyBefore returns the key of the request that was redirected to this one. An
// [http.Client] copies only the headers that its caller has set.
func keyBefore(req *http.Request) []string {
	if req.Response == nil || req.Response.Request == nil {
		return nil
	}
	return req.Response.Request.Header[KeyHeader]
}

// chosenKey returns the key of WithKey or of the claim.
func chosenKey(ctx context.Context) (key string, ok bool) {
	if key, ok := ctx.Value(keyOfContext).(string); ok {
		return key, true
	}
	if claim, ok := once.ClaimFrom(ctx); ok {
		return claim.Key.String(), true
	}
	return "", false
}

// randomKey returns a version 4 UUID.
func randomKey() string {
	id := name.Token()
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return name.Format(id)
}

func (t *Transport) format(key string) (string, error) {
	switch {
	case key == "":
		return "", errors.New("it is empty: give the request a name, or do not call WithKey")
	case len(key) > maxKey:
		return "", fmt.Errorf("it has %d bytes, at most %d are allowed", len(key), maxKey)
	case t.Bare:
		return key, checkBare(key)
	}
	if at := strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }); at >= 0 {
		return "", fmt.Errorf("it has %q at byte %d: use printable ASCII, or a digest of the name", key[at], at)
	}
	return formatKey(key)
}

// interrupted returns the error of a request whose context ended during a pause.
func interrupted(ctx context.Context, resp *http.Response, err error) error {
	if err != nil {
		return fmt.Errorf("httponce: %w, before another attempt; the last one: %w", context.Cause(ctx), err)
	}
	return fmt.Errorf("httponce: %w, before another attempt; the last one was answered with %s", context.Cause(ctx), resp.Status)
}

// attemptError is the error of the last attempt.
type attemptError struct {
	error
	attempts   int
	redirected bool
	before     error // errMayHaveArrived, or nil
}

// errMayHaveArrived in the tree of an error makes it no dial error. See
// [once.IsDialError].
var errMayHaveArrived = errors.New("httponce: what was sent before may have arrived")

// noteAttempt records that an attempt may have arrived, unless its error rules
// that out.
func (r *outgoing) noteAttempt(err error) {
	if !once.IsDialError(err) {
		r.mayHaveArrived.Store(true)
	}
}

// afterAttempts returns the error of the last of n attempts.
func (r *outgoing) afterAttempts(n int, err error) error {
	arrived := r.mayHaveArrived.Load() || r.Response != nil // a redirect comes from a server
	if err == nil || n == 1 && !arrived {
		return err
	}
	f := &attemptError{error: err, attempts: n, redirected: r.Response != nil}
	if arrived {
		f.before = errMayHaveArrived
	}
	return f
}

func (f *attemptError) Error() string {
	switch {
	case f.attempts > 1:
		return fmt.Sprintf("%v (the last of %d attempts)", f.error, f.attempts)
	case f.redirected:
		return fmt.Sprintf("%v (after a redirect)", f.error)
	}
	return f.error.Error()
}

func (f *attemptError) Unwrap() []error {
	if f.before == nil {
		return []error{f.error}
	}
	return []error{f.error, f.before}
}

// Timeout lets [url.Error] report a timeout, because it does not unwrap.
func (f *attemptError) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(f.error, &timeout) && timeout.Timeout()
}
