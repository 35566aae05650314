package once

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/errtree"
)

// NotDone wraps err to report that the work of [Do] had no effect, so the key
// is free again. It returns a non-nil error even if err is nil.
func NotDone(err error) error { return &failure{kind: errNotDone, cause: err} }

// Permanent wraps err to report that a retry cannot help. It does not imply
// NotDone. It returns a non-nil error even if err is nil.
func Permanent(err error) error { return &failure{kind: errPermanent, cause: err} }

// RetryAfter wraps err to report when to retry. It does not imply NotDone. It
// returns a non-nil error even if err is nil.
func RetryAfter(d time.Duration, err error) error {
	return &failure{kind: errRetryAfter, after: d, cause: err}
}

// MayRetry reports whether the same call may succeed later, and how long to
// wait before repeating it.
func MayRetry(err error) (after time.Duration, ok bool) {
	final := []error{errPermanent, errUnkept, errUncoded, ErrInvalid, ErrInTx, ErrNoEffects, ErrClosed, ErrMismatch, ErrExpired,
		ErrOutcomeUnavailable, ErrOutcomeRefused, ErrOutcomeTooLarge, ErrParked, ErrCorrupt, ErrRejected}
	if err == nil || errtree.HasAny(err, final...) {
		return 0, false
	}
	return retryAfter(err), true
}

// IsDialError reports whether err says that no connection could be made: the
// name was not found, the connection was refused, or connecting timed out. If
// the work made one attempt on a new connection, it has then sent nothing and
// may return [NotDone]:
//
//	if once.IsDialError(err) {
//		return charge, once.NotDone(err)
//	}
//
// IsDialError looks at err alone. It does not show that nothing was sent
//
//   - if the client makes several attempts and returns the error of the last
//     one. net/http repeats a request that failed on a kept connection if it
//     has no body or a GetBody, and its method is idempotent or it has the
//     header Idempotency-Key. To send a body only once, set GetBody to nil;
//   - if the client follows redirects, and could not connect to the target of
//     one. A client of net/http follows them, unless its CheckRedirect returns
//     http.ErrUseLastResponse;
//   - if the work makes several calls, and an earlier one may have had an
//     effect;
//   - if err comes from another host: a proxy or server that reports, with the
//     same types, that it could not reach the next one.
//
// An error that wraps several is a dial error only if all of them are. Failures
// that [Do], [DoTx] and [InTx] return are not dial errors, because it may be
// the store that could not be reached, after the work was done. Errors of a TLS
// handshake are not dial errors, although they precede any request. A gRPC
// client returns a status instead; see docs/errors.md.
func IsDialError(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *net.OpError:
		if e.Op == "proxyconnect" { // net/http, to a proxy
			return IsDialError(e.Err)
		}
		return e.Op == "dial"
	case *net.DNSError:
		return true
	case syscall.Errno:
		return e == syscall.ECONNREFUSED
	case *failure: // the cause of any other failure may be an unreachable store, after the work was done
		return e.isMark() && IsDialError(e.cause)
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		for _, one := range all {
			if !IsDialError(one) {
				return false
			}
		}
		return len(all) > 0
	}
	return IsDialError(errors.Unwrap(err))
}

// failure is an error and its circumstances. Only kind is mandatory.
type failure struct {
	kind    error // a sentinel
	key     Key   // zero if the error concerns no key
	attempt int64
	after   time.Duration
	hint    string // what to do
	cause   error
}

// Error begins with what happened. A mark of the caller follows in brackets: it
// says what may be done about it.
func (f *failure) Error() string {
	if f.isMark() && f.cause != nil {
		return f.marked()
	}
	text := f.kind.Error()
	if f.key.ID != "" || f.key.Operation != "" {
		text += fmt.Sprintf(": %s %q", f.key.Operation, f.key.ID)
	}
	if f.key.Scope != "" {
		text += fmt.Sprintf(" of %q", f.key.Scope)
	}
	if f.attempt > 0 {
		text += fmt.Sprintf(", attempt %d", f.attempt)
	}
	if f.after > 0 {
		text += fmt.Sprintf(", retry after %v", f.after.Round(time.Millisecond))
	}
	if f.hint != "" {
		text += "; " + f.hint
	}
	if f.cause != nil {
		text += ": " + f.cause.Error()
	}
	return text
}

// isMark reports whether f is what [NotDone], [Permanent] or [RetryAfter] made.
func (f *failure) isMark() bool {
	return f.key == Key{} && (f.kind == errNotDone || f.kind == errPermanent || f.kind == errRetryAfter)
}

// marked returns the text of the marked error, and then its marks.
func (f *failure) marked() string {
	var marks []string
	for {
		mark := strings.TrimPrefix(f.kind.Error(), "once: ")
		if f.kind == errRetryAfter && f.after > 0 {
			mark = fmt.Sprintf("retry after %v", f.after.Round(time.Millisecond))
		}
		if !slices.Contains(marks, mark) {
			marks = append(marks, mark)
		}
		next, ok := f.cause.(*failure)
		if !ok || !next.isMark() || next.cause == nil {
			return f.cause.Error() + " (" + strings.Join(marks, ", ") + ")"
		}
		f = next
	}
}

// Unwrap returns the kind, and then the cause, if there is one.
func (f *failure) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

// retryAfter returns the delay of the outermost failure in err that has one, or 0.
func retryAfter(err error) time.Duration {
	var f *failure
	for errors.As(err, &f) && f.after <= 0 && f.cause != nil {
		err, f = errtree.Tame(f.cause), nil
	}
	if f == nil {
		return 0
	}
	return max(f.after, 0)
}

// resultOf returns the result that the outermost failure names. Failures below
// it belong to other calls.
func resultOf(err error) string {
	var f *failure
	if errors.As(err, &f) {
		err = f.kind
	}
	var known *sentinel
	if errors.As(err, &known) {
		return known.result
	}
	return ""
}

// hideNotDone prepares the error of a call for its caller. If the caller is work
// itself and returns the error, NotDone must not apply to that work.
func hideNotDone(err error) error { return errtree.Hide(err, errNotDone) }
