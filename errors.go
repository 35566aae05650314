package once

import (
	"errors"
	"fmt"

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
	errUnkept     = errors.New("once: it happened and is recorded as done, without its value, which cannot be encoded")
	errUncoded    = errors.New("once: the value cannot be encoded, so nothing was done")
	errSlow       = errors.New("once: the store takes longer to answer than a lease lasts")
	errRollBack   = errors.New("once: rejected, roll back")
)

// sentinel is an error that callers match. It names the result of a call that
// returns it.
type sentinel struct{ result, text string }

func newSentinel(result, text string) error { return &sentinel{result, text} }

func (s *sentinel) Error() string { return s.text }

// invalid returns an ErrInvalid that says what to change.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
