package once

import (
	"errors"
	"time"

	"github.com/effectively-once/once/internal/mask"
	"github.com/effectively-once/once/internal/prose"
	"github.com/effectively-once/once/internal/sight"
)

// Before anything runs: the call, or the store, is not as it must be. Nothing was changed.
var (
	ErrInvalid   = sight.NewError(sight.Invalid, "once: invalid")                         // the text says what to change
	ErrInTx      = sight.NewError(sight.Invalid, "once: inside a transaction")            // do outside work before it
	ErrNoEffects = sight.NewError(sight.Invalid, "once: no outside effects in a rebuild") // see inbox.WithoutEffects
	ErrClosed    = sight.NewError(sight.Store, "once: store closed")
)

// Instead of running: the key is known.
var (
	ErrInProgress         = sight.NewError(sight.InProgress, "once: in progress elsewhere")               // come back after what MayRetry says
	ErrMismatch           = sight.NewError(sight.Mismatch, "once: same key, different input")             // the caller is wrong
	ErrExpired            = sight.NewError(sight.Expired, "once: done, and its outcome is forgotten")     // longer ago than KeepOutcome
	ErrOutcomeUnavailable = sight.NewError(sight.Unavailable, "once: done, and its outcome was not kept") // too large, or of another type
	ErrParked             = sight.NewError(sight.Parked, "once: parked until a person decides")           // see MarkDone, MarkNotDone
	ErrCorrupt            = sight.NewError(sight.Corrupt, "once: stored record is damaged")               // never replayed, never run again
)

// After running, or instead of it. ErrUnknown is never "it did not happen", and neither is ErrLeaseLost.
var (
	ErrUnknown         = sight.NewError(sight.Unknown, "once: outcome unknown")  // call again: it is asked about, or run again
	ErrLeaseLost       = sight.NewError(sight.LeaseLost, "once: lease lost")     // call again: another attempt may have an answer
	ErrOutcomeRefused  = sight.NewError(sight.Failed, "once: outcome refused")   // of a Store's settlement: see Store.Settle
	ErrOutcomeTooLarge = sight.NewError(sight.Failed, "once: outcome too large") // of DoTx, which has rolled back
)

// ErrRejected is returned by work together with its answer: a business no. It is recorded and replayed
// like any answer, and never retried. Work that passes on the rejection of a step is rejected, too.
var ErrRejected = errors.New("once: rejected")

// ErrConflict is how a [TxStore] says that the database rolled the whole transaction back and wants it again:
// a deadlock, a serialization failure, a busy database. [DoTx] does that until its context ends, or for a minute if the
// context has no deadline; then it returns ErrConflict.
var ErrConflict = sight.NewError(sight.Conflict, "once: transaction conflict")

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
		ErrOutcomeUnavailable, ErrOutcomeRefused, ErrOutcomeTooLarge, ErrParked, ErrCorrupt, ErrRejected}
	if err == nil || mask.HasAny(err, final...) {
		return 0, false
	}
	return prose.After[Key](err), true
}

// IsDuplicate reports whether err says that a key is being worked on, is done without an answer to replay, or had another input.
func IsDuplicate(err error) bool {
	return mask.HasAny(err, ErrInProgress, ErrMismatch, ErrExpired, ErrOutcomeUnavailable)
}

// failure is an error with its circumstances: which key and attempt it is about, and its cause.
type failure = prose.Failure[Key]

// spent is the error of a call as its caller gets it: NotDone says nothing of the work of a caller that passes it on.
func spent(err error) error { return mask.Hide(err, errNotDone) }
