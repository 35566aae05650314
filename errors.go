package once

import (
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/observe"
)

// These errors report an invalid call or store. Nothing was run or changed.
var (
	ErrInvalid   = newSentinel(observe.Invalid, "once: invalid")                         // the text says what to change
	ErrInTx      = newSentinel(observe.Invalid, "once: inside a transaction")            // do outside work before the transaction
	ErrNoEffects = newSentinel(observe.Invalid, "once: no outside effects in a rebuild") // see inbox.WithoutEffects
	ErrClosed    = newSentinel(observe.Store, "once: store closed")
)

// These errors report that the key is known, so the work was not run.
var (
	ErrInProgress         = newSentinel(observe.InProgress, "once: in progress elsewhere")               // MayRetry says when to retry
	ErrMismatch           = newSentinel(observe.Mismatch, "once: same key, different input")             // a bug in the caller
	ErrExpired            = newSentinel(observe.Expired, "once: done, and its outcome is forgotten")     // past KeepOutcome
	ErrOutcomeUnavailable = newSentinel(observe.Unavailable, "once: done, and its outcome was not kept") // too large, refused, or undecodable
	ErrParked             = newSentinel(observe.Parked, "once: parked until a person decides")           // see MarkDone and MarkNotDone
	ErrCorrupt            = newSentinel(observe.Corrupt, "once: stored record is damaged")               // neither replayed nor run again
)

// These errors may follow an attempt. ErrOutcomeUnknown and ErrLeaseLost do not
// imply that the work did not happen.
var (
	ErrOutcomeUnknown  = newSentinel(observe.Unknown, "once: outcome unknown")  // call again: it is looked up, or repeated
	ErrLeaseLost       = newSentinel(observe.LeaseLost, "once: lease lost")     // call again: another attempt may have answered
	ErrOutcomeRefused  = newSentinel(observe.Failed, "once: outcome refused")   // see Store.Settle
	ErrOutcomeTooLarge = newSentinel(observe.Failed, "once: outcome too large") // DoTx has rolled back
)

// ErrRejected is returned by work, together with a value, to reject a request
// as a final answer. The answer is recorded and replayed like any other, and
// never retried. If work returns the ErrRejected of a step, it is rejected too.
var ErrRejected = errors.New("once: rejected")

// ErrConflict is returned by a [TxStore] when the database rolled back the
// whole transaction and it may succeed if repeated: after a deadlock, a
// serialization failure or a busy database. [DoTx] repeats it until its context
// ends or, if that has no deadline, for a minute. Then DoTx returns
// ErrConflict.
var ErrConflict = newSentinel(observe.Conflict, "once: transaction conflict")

// The first three mark errors of callers. They match anywhere in an error tree.
var (
	errNotDone    = errtree.ErrNotDone
	errPermanent  = errors.New("once: a retry cannot help")
	errRetryAfter = errors.New("once: try again")
	errSlow       = errors.New("once: the store answers slower than a lease lasts")
	errRollBack   = errors.New("once: rejected, roll back")
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
	final := []error{errPermanent, ErrInvalid, ErrInTx, ErrNoEffects, ErrClosed, ErrMismatch, ErrExpired,
		ErrOutcomeUnavailable, ErrOutcomeRefused, ErrOutcomeTooLarge, ErrParked, ErrCorrupt, ErrRejected}
	if err == nil || errtree.HasAny(err, final...) {
		return 0, false
	}
	return retryAfter(err), true
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

func (f *failure) Error() string {
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
		err, f = f.cause, nil
	}
	if f == nil {
		return 0
	}
	return max(f.after, 0)
}

// sentinel is an error that callers match. It names the result of a call that
// returns it.
type sentinel struct{ result, text string }

func newSentinel(result, text string) error { return &sentinel{result, text} }

func (s *sentinel) Error() string { return s.text }

// hideNotDone is the error of a call as its caller gets it: NotDone says nothing of the work of a caller that passes it on.
func hideNotDone(err error) error { return errtree.Hide(err, errNotDone) }
