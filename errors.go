package once

import (
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once/internal/mask"
	"github.com/effectively-once/once/internal/prose"
)

// Before anything runs: the call, or the store, is not as it must be. Nothing was changed.
var (
	ErrInvalid   = errors.New("once: invalid")                         // the text says what to change
	ErrInTx      = errors.New("once: inside a transaction")            // do outside work before it
	ErrNoEffects = errors.New("once: no outside effects in a rebuild") // see inbox.WithoutEffects
	ErrClosed    = errors.New("once: store closed")
)

// Instead of running: the key is known.
var (
	ErrInProgress         = errors.New("once: in progress elsewhere")              // come back after what MayRetry says
	ErrMismatch           = errors.New("once: same key, different input")          // the caller is wrong
	ErrExpired            = errors.New("once: done, and its outcome is forgotten") // longer ago than KeepOutcome
	ErrOutcomeUnavailable = errors.New("once: done, and its outcome was not kept") // too large, or of another type
	ErrParked             = errors.New("once: parked until a person decides")      // see MarkDone, MarkNotDone
	ErrCorrupt            = errors.New("once: stored record is damaged")           // never replayed, never run again
)

// After running, or instead of it. ErrUnknown is never "it did not happen", and neither is ErrLeaseLost.
var (
	ErrUnknown         = errors.New("once: outcome unknown")   // call again: it is asked about, or run again
	ErrLeaseLost       = errors.New("once: lease lost")        // call again: another attempt may have an answer
	ErrOutcomeTooLarge = errors.New("once: outcome too large") // of DoTx, which has rolled back
)

// ErrRejected is returned by work together with its answer: a business no. It is recorded and replayed
// like any answer, and never retried. Work that passes on the rejection of a step is rejected, too.
var ErrRejected = errors.New("once: rejected")

// ErrConflict is how a [TxStore] says that the database rolled the whole transaction back and wants it again:
// a deadlock, a serialization failure, a busy database. [DoTx] does that, a bounded number of times.
var ErrConflict = errors.New("once: transaction conflict")

// The first three are marks that callers put on their errors, matched with errors.Is anywhere in a tree.
var (
	errNotDone    = mask.ErrNotDone
	errPermanent  = errors.New("once: a retry cannot help")
	errRetryAfter = errors.New("once: try again")
	errSlow       = errors.New("once: the store answers slower than a lease lasts")
	errRollBack   = errors.New("once: rejected, roll back")
)

// NotDone says of an error of [Do]'s work that nothing happened: the key is free again. It is never nil, even for nil.
func NotDone(err error) error { return &failure{Kind: errNotDone, Cause: err} }

// Permanent says of an error that a retry cannot help, not that nothing happened. It is never nil, even for nil.
func Permanent(err error) error { return &failure{Kind: errPermanent, Cause: err} }

// RetryAfter says of an error when a retry makes sense, not that nothing happened. It is never nil, even for nil.
func RetryAfter(d time.Duration, err error) error {
	return &failure{Kind: errRetryAfter, After: d, Cause: err}
}

// MayRetry reports whether the same call may succeed later, and how long to wait before it; where not, it is pointless.
func MayRetry(err error) (after time.Duration, ok bool) {
	final := []error{errPermanent, ErrInvalid, ErrInTx, ErrNoEffects, ErrClosed, ErrMismatch, ErrExpired,
		ErrOutcomeUnavailable, ErrOutcomeTooLarge, ErrParked, ErrCorrupt, ErrRejected}
	if err == nil || isAny(err, final...) {
		return 0, false
	}
	return prose.After[Key](err), true
}

// IsDuplicate reports whether err says that a key is being worked on, is done without an answer to replay, or had another input.
func IsDuplicate(err error) bool {
	return isAny(err, ErrInProgress, ErrMismatch, ErrExpired, ErrOutcomeUnavailable)
}

// failure is an error with its circumstances: which key and attempt it is about, and its cause.
type failure = prose.Failure[Key]

// spent is the error of a call as its caller gets it: NotDone says nothing of the work of a caller that passes it on.
func spent(err error) error { return mask.Hide(err, errNotDone) }

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
