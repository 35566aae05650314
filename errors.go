package once

import (
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/observe"
)

// Before anything runs: the call, or the store, is not as it must be. Nothing was changed.
var (
	ErrInvalid   = newSentinel(observe.Invalid, "once: invalid")                         // the text says what to change
	ErrInTx      = newSentinel(observe.Invalid, "once: inside a transaction")            // do outside work before it
	ErrNoEffects = newSentinel(observe.Invalid, "once: no outside effects in a rebuild") // see inbox.WithoutEffects
	ErrClosed    = newSentinel(observe.Store, "once: store closed")
)

// Instead of running: the key is known.
var (
	ErrInProgress         = newSentinel(observe.InProgress, "once: in progress elsewhere")               // come back after what MayRetry says
	ErrMismatch           = newSentinel(observe.Mismatch, "once: same key, different input")             // the caller is wrong
	ErrExpired            = newSentinel(observe.Expired, "once: done, and its outcome is forgotten")     // longer ago than KeepOutcome
	ErrOutcomeUnavailable = newSentinel(observe.Unavailable, "once: done, and its outcome was not kept") // too large, or of another type
	ErrParked             = newSentinel(observe.Parked, "once: parked until a person decides")           // see MarkDone, MarkNotDone
	ErrCorrupt            = newSentinel(observe.Corrupt, "once: stored record is damaged")               // never replayed, never run again
)

// After running, or instead of it. ErrOutcomeUnknown is never "it did not happen", and neither is ErrLeaseLost.
var (
	ErrOutcomeUnknown  = newSentinel(observe.Unknown, "once: outcome unknown")  // call again: it is asked about, or run again
	ErrLeaseLost       = newSentinel(observe.LeaseLost, "once: lease lost")     // call again: another attempt may have an answer
	ErrOutcomeRefused  = newSentinel(observe.Failed, "once: outcome refused")   // of a Store's settlement: see Store.Settle
	ErrOutcomeTooLarge = newSentinel(observe.Failed, "once: outcome too large") // of DoTx, which has rolled back
)

// ErrRejected is returned by work together with its answer: a business no. It is recorded and replayed
// like any answer, and never retried. Work that passes on the rejection of a step is rejected, too.
var ErrRejected = errors.New("once: rejected")

// ErrConflict is how a [TxStore] says that the database rolled the whole transaction back and wants it again:
// a deadlock, a serialization failure, a busy database. [DoTx] does that until its context ends, or for a minute if the
// context has no deadline; then it returns ErrConflict.
var ErrConflict = newSentinel(observe.Conflict, "once: transaction conflict")

// The first three are marks that callers put on their errors, matched with errors.Is anywhere in a tree.
var (
	errNotDone    = errtree.ErrNotDone
	errPermanent  = errors.New("once: a retry cannot help")
	errRetryAfter = errors.New("once: try again")
	errSlow       = errors.New("once: the store answers slower than a lease lasts")
	errRollBack   = errors.New("once: rejected, roll back")
)

// NotDone says of an error of [Do]'s work that nothing happened: the key is free again. It is never nil, even for nil.
func NotDone(err error) error { return &failure{kind: errNotDone, cause: err} }

// Permanent says of an error that a retry cannot help, not that nothing happened. It is never nil, even for nil.
func Permanent(err error) error { return &failure{kind: errPermanent, cause: err} }

// RetryAfter says of an error when a retry makes sense, not that nothing happened. It is never nil, even for nil.
func RetryAfter(d time.Duration, err error) error {
	return &failure{kind: errRetryAfter, after: d, cause: err}
}

// MayRetry reports whether the same call may succeed later, and how long to wait before it; where not, it is pointless.
func MayRetry(err error) (after time.Duration, ok bool) {
	final := []error{errPermanent, ErrInvalid, ErrInTx, ErrNoEffects, ErrClosed, ErrMismatch, ErrExpired,
		ErrOutcomeUnavailable, ErrOutcomeRefused, ErrOutcomeTooLarge, ErrParked, ErrCorrupt, ErrRejected}
	if err == nil || errtree.HasAny(err, final...) {
		return 0, false
	}
	return retryAfter(err), true
}

// failure is an error with its circumstances. Only kind is mandatory.
type failure struct {
	kind    error // a sentinel
	key     Key   // zero: not about one
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

// retryAfter is when to try again, as the outermost failure in err says that says it; 0: none does.
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

// sentinel is an error that callers match, and which says how a call that returns it has ended.
type sentinel struct{ result, text string }

func newSentinel(result, text string) error { return &sentinel{result, text} }

func (s *sentinel) Error() string { return s.text }

// hideNotDone is the error of a call as its caller gets it: NotDone says nothing of the work of a caller that passes it on.
func hideNotDone(err error) error { return errtree.Hide(err, errNotDone) }
