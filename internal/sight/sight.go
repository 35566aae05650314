// Package sight follows calls of package once, and messages, for an observer.
package sight

import (
	"context"
	"errors"
	"log/slog"
)

// How a call ends. Package observe says what each means.
const (
	Done        = "done"
	Rejected    = "rejected"
	Replayed    = "replayed"
	Free        = "free"
	InProgress  = "in_progress"
	Mismatch    = "mismatch"
	Expired     = "expired"
	Unavailable = "unavailable"
	Parked      = "parked"
	Unknown     = "unknown"
	LeaseLost   = "lease_lost"
	Failed      = "failed"
	Panicked    = "panicked"
	Conflict    = "conflict"
	Corrupt     = "corrupt"
	Store       = "store"
	Canceled    = "canceled"
	Invalid     = "invalid"
)

// Steps in the life of a key and of a message. Package observe says what each means. Some are also how a call ends.
const (
	Claimed     = "claimed"
	Joined      = "joined"
	Refused     = "refused"
	Extended    = "lease_extended"
	Released    = "released"
	Asked       = "asked"
	Decided     = "decided"
	Forgotten   = "forgotten"
	KeyReplayed = "key_replayed"
	KeyConflict = "key_conflict"

	MessagePut       = "message_put"
	MessagePublished = "message_published"
	MessageReceived  = "message_received"
)

// Error is a sentinel that says how a call has ended.
type Error struct{ result, text string }

// NewError makes a sentinel.
func NewError(result, text string) error { return &Error{result, text} }

func (e *Error) Error() string { return e.text }

// byStatus is how a call has ended that leaves a record in a status. One that is running has not ended.
var byStatus = map[string]string{
	"absent": Free, "done": Done, "parked": Parked, "unknown": Unknown, "expired": Expired,
}

// Ended is a once.Ended.
type Ended struct {
	Result   string
	Replayed bool
	Attempt  int64
	Ran      bool
	Err      error
}

// Call is a call on its way. A nil one is not observed.
type Call struct {
	Ended
	caller context.Context
	logger *slog.Logger
	ended  func(Ended)
}

// Begin begins a call. A panic of the observer is logged, and then the call goes on unobserved.
func Begin(ctx context.Context, logger *slog.Logger,
	begin func(context.Context) (context.Context, func(Ended))) (context.Context, *Call) {
	c := &Call{caller: ctx, logger: logger}
	guard(ctx, logger, func() {
		began, ended := begin(c.caller)
		c.ended = ended
		if began != nil {
			ctx = began
		}
	})
	return ctx, c
}

// Enter says that the work is entered.
func (c *Call) Enter() {
	if c != nil {
		c.Ran = true
	}
}

// Tell says which attempt the answer or the error is about, and, if there is no error, what has become of the record.
func (c *Call) Tell(attempt int64, replayed bool, status string, rejected bool, err error) {
	if c == nil {
		return
	}
	c.Attempt, c.Replayed = attempt, replayed
	switch {
	case err != nil:
	case replayed:
		c.Result = Replayed
	case rejected:
		c.Result = Rejected
	default:
		c.Result = byStatus[status]
	}
}

// Fail says that an error is the work's own, and that nothing of the work remains. A nil one: it panicked.
func (c *Call) Fail(err error) {
	switch {
	case c == nil || !c.Ran || resultOf(err) == Conflict:
	case err == nil:
		c.Result = Panicked
	default:
		c.Result = Failed
	}
}

// End ends the call with an error. It is deferred: one that was told nothing, and has no error, has panicked.
func (c *Call) End(err *error) {
	if c == nil || c.ended == nil {
		return
	}
	c.Err = *err
	byError := resultOf(c.Err)
	switch {
	case c.Result != "" && c.Result != Replayed: // what was told says more than the error
	case byError != "":
		c.Result = byError
	case c.Result == Replayed:
	case c.Err == nil:
		c.Result = Panicked
	case !c.Ran && c.caller.Err() != nil:
		c.Result = Canceled
	default:
		c.Result = Store
	}
	if c.Err == nil && c.Result == Panicked {
		c.Err = errPanicked
	}
	guard(c.caller, c.logger, func() { c.ended(c.Ended) })
}

var errPanicked = errors.New("once: a panic, or the end of the goroutine")

// resultOf is what the outermost failure says: what is below it is somebody else's.
func resultOf(err error) string {
	var failure interface {
		error
		What() error
	}
	if errors.As(err, &failure) {
		err = failure.What()
	}
	var known *Error
	if errors.As(err, &known) {
		return known.result
	}
	return ""
}
