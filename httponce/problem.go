package httponce

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission"
)

// problem is an error in the form that a client gets (RFC 9457).
type problem struct {
	name   string // the fragment of its type
	status int
	title  string
	after  time.Duration // Retry-After, if above 0
	detail string
	answer int // the status of a response that was not kept
}

func (p problem) Error() string { return "httponce: " + p.title }

const (
	inProgress     = "in-progress"
	outcomeUnknown = "outcome-unknown"
	whenUnknown    = 30 * time.Second // Retry-After if the outcome is unknown, and no better delay is known
	whenParked     = 5 * time.Minute  // if a person has to decide
	whenDown       = 2 * time.Second  // if the store cannot be reached
)

var (
	problemMissing    = problem{name: "key-missing", status: http.StatusBadRequest, title: "Idempotency-Key is missing", detail: "This request needs the header Idempotency-Key: a name of your own for it, the same in each repeat."}
	problemMalformed  = problem{name: "key-malformed", status: http.StatusBadRequest, title: "Idempotency-Key is malformed"}
	problemBody       = problem{name: "body-unreadable", status: http.StatusBadRequest, title: "The request could not be read", detail: "Nothing was done."}
	problemCaller     = problem{name: "caller-unknown", status: http.StatusUnauthorized, title: "The caller is unknown", detail: "A key belongs to its caller. Nothing was done."}
	problemTooLarge   = problem{name: "body-too-large", status: http.StatusRequestEntityTooLarge, title: "The request is too large", detail: "Nothing was done."}
	problemMismatch   = problem{name: "key-reused", status: http.StatusUnprocessableEntity, title: "Idempotency-Key was used for another request", detail: "The first request with this key had another method, path, query or body, or another header that counts. If this is the same request, send it unchanged. A new key means new work."}
	problemInProgress = problem{name: inProgress, status: http.StatusConflict, title: "The first request with this key is still running", detail: "Repeat this request later, with the same key."}
	problemUnknown    = problem{name: outcomeUnknown, status: http.StatusConflict, title: "The outcome of the first request with this key is unknown", detail: "It may have happened, and is not run again until that is found out. Repeat this request later, with the same key."}
	problemExpired    = problem{name: "answer-expired", status: http.StatusGone, title: "The answer is no longer kept", detail: "The first request with this key is done, too long ago for its answer. It was not run again."}
	problemNotKept    = problem{name: "answer-not-kept", status: http.StatusGone, title: "The answer was not kept", detail: "The first request with this key is done. Its response could not be kept. It was not run again."}
	problemLimit      = problem{name: "too-many-requests", status: http.StatusTooManyRequests, title: "Too many new keys", detail: "Nothing was done. Repeat this request later, with the same key."}
	problemDamaged    = problem{name: "record-damaged", status: http.StatusInternalServerError, title: "The record of this key is damaged", detail: "Nothing was run again."}
	problemFailed     = problem{name: "rolled-back", status: http.StatusInternalServerError, title: "The request failed", detail: "Everything was rolled back. It may be repeated with the same key."}
	problemSetUp      = problem{name: "misconfigured", status: http.StatusInternalServerError, title: "The server is not set up right", detail: "Nothing was done."}
	problemNotWhole   = problem{name: "body-not-whole", status: http.StatusInternalServerError, title: "The server has not seen the whole request", detail: "The body was read before it could be compared with other requests. Nothing was done."}
	problemDown       = problem{name: "unavailable", status: http.StatusServiceUnavailable, title: "Requests cannot be remembered at the moment", after: whenDown, detail: "Nothing was done. Repeat this request later, with the same key."}
)

// problemOf returns the problem for an error of once or of admission.
func problemOf(err error) problem {
	after, _ := once.MayRetry(err)
	is := func(target error) bool { return errors.Is(err, target) }
	var noRoom *admission.NoRoomError
	switch {
	case errors.As(err, &noRoom):
		return problemLimit.retried(noRoom.RetryAfter)
	case is(once.ErrMismatch):
		return problemMismatch
	case is(once.ErrExpired):
		return problemExpired
	case is(once.ErrOutcomeUnavailable):
		return problemNotKept
	case is(once.ErrCorrupt):
		return problemDamaged
	case is(once.ErrInProgress):
		return problemInProgress.retried(max(after, time.Second))
	case is(once.ErrOutcomeUnknown), is(once.ErrParked), is(once.ErrLeaseLost):
		switch {
		case is(once.ErrParked):
			after = whenParked
		case after <= 0:
			after = whenUnknown
		}
		return problemUnknown.retried(after)
	case is(once.ErrOutcomeTooLarge):
		return problemFailed
	case is(once.ErrInvalid), is(once.ErrInTx):
		return problemSetUp
	}
	return problemDown
}

// failedWith returns the problem for an error of a handler whose transaction
// was rolled back.
func failedWith(err error) problem {
	p := problemFailed
	if after, ok := once.MayRetry(err); ok && after > 0 {
		p.status, p.after = http.StatusServiceUnavailable, after
	}
	return p
}

func (p problem) retried(after time.Duration) problem {
	p.after = after
	return p
}

func (p problem) because(detail string) problem {
	p.detail = detail
	return p
}

// document is the JSON form of a problem. Clients that follow Stripe's API read
// only its error member, and some take a response without one for data, whatever
// its status. The one for Go never retries a response that has one.
type document struct {
	Type   string         `json:"type"`
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail,omitempty"`
	Answer int            `json:"answer_status,omitempty"`
	Error  *documentError `json:"error,omitempty"`
}

type documentError struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
	DocURL  string `json:"doc_url"`
}

// document returns the document of a problem. docs is the URL of the page that
// describes it.
func (p problem) document(docs string) document {
	at, message := docs+"#"+p.name, p.title+"."
	if p.detail != "" {
		message += " " + p.detail
	}
	return document{at, p.title, p.status, p.detail, p.answer, &documentError{p.kind(), p.name, message, at}}
}

// kind returns the error type of Stripe that is closest to a problem.
func (p problem) kind() string {
	switch p.status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity: // all about a key that was used before
		return "idempotency_error"
	}
	if p.status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// shouldRetryHeader tells clients like Stripe's whether to retry.
const shouldRetryHeader = "Stripe-Should-Retry"

// retrySoon is the longest Retry-After after which clients like Stripe's are
// told to retry. They do not wait longer.
const retrySoon = time.Minute

// shouldRetry reports whether a client that retries within a minute may succeed.
func (p problem) shouldRetry() bool { return p.after > 0 && p.after <= retrySoon }

// isStripeGo reports whether a request comes from Stripe's client for Go.
func isStripeGo(r *http.Request) bool {
	return strings.Contains(r.Header.Get("User-Agent"), "GoBindings/")
}

func (p problem) send(w http.ResponseWriter, r *http.Request, docs string) {
	header := w.Header()
	for name := range ofBody { // an outer handler may have set them for another response
		if name != "Content-Encoding" { // it may compress what is written here
			remove(header, name)
		}
	}
	remove(header, "Cache-Control")
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	header.Set("Link", "<"+docs+`>; rel="help"`)
	if p.after > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64((p.after+time.Second-1)/time.Second), 10))
	}
	header.Set(shouldRetryHeader, strconv.FormatBool(p.shouldRetry()))
	document := p.document(docs)
	if p.shouldRetry() && isStripeGo(r) {
		document.Error = nil
	}
	body, _ := json.Marshal(document) // strings and numbers cannot fail
	w.WriteHeader(p.status)
	_, _ = w.Write(append(body, '\n')) // the client may have disconnected
}
