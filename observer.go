package once

import (
	"context"
	"errors"
	"log/slog"

	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
)

// Observer sees each [Do], [DoTx], [InTx] and [Operation.Ask] on the stores that have it in their Options: for metrics and
// spans, as package observe/otelobserve makes them. It is called by many goroutines, the caller of each waits for it, and
// it must not use the store. It decides nothing: if it panics, that is logged, and the call goes on.
type Observer interface {
	// Begin returns the context that the call goes on with, a child of ctx, or nil for ctx itself; and a function that is
	// called once, when the call has ended, also if that is by a panic; or nil. The verb is "Do", "DoTx", "InTx" or "Ask".
	// A call that waits in this process for another one of its key is a call, and so is an Ask that Do makes.
	Begin(ctx context.Context, verb string, k Key) (context.Context, func(CallResult))
}

// CallResult is how a call has ended.
type CallResult struct {
	Result   string // one word, of those that package observe lists
	Replayed bool   // as in Report
	Attempt  int64  // as in Report
	Ran      bool   // the work was entered. Of DoTx that of a duplicate may be, and has no effect then
	Err      error  // as the caller gets it
}

// observation is a call on its way, as an Observer gets to see it. A nil one is not observed.
type observation struct {
	CallResult
	caller context.Context
	logger *slog.Logger
	ended  func(CallResult)
}

// beginObservation returns the context that the call goes on with, and nil if there is no Observer. If the observer panics,
// that is logged, and the call goes on unobserved.
func beginObservation(ctx context.Context, s Store, verb string, k Key) (context.Context, *observation) {
	if s == nil || s.Options() == nil || s.Options().Observer == nil {
		return ctx, nil
	}
	opts := s.Options()
	o := &observation{caller: ctx, logger: opts.Logger}
	watch.Guard(ctx, o.logger, func() {
		var began context.Context
		if began, o.ended = opts.Observer.Begin(o.caller, verb, k); began != nil {
			ctx = began
		}
	})
	return ctx, o
}

// enter notes that the work is entered.
func (o *observation) enter() {
	if o != nil {
		o.Ran = true
	}
}

// tell notes which attempt the answer or the error is about, and, if there is no error, what has become of the record.
func (o *observation) tell(r Report, status Status, rejected bool, err error) {
	if o == nil {
		return
	}
	o.Attempt, o.Replayed = r.Attempt, r.Replayed
	switch {
	case err != nil:
	case r.Replayed:
		o.Result = observe.Replayed
	case rejected:
		o.Result = observe.Rejected
	default:
		o.Result = resultOfStatus(status)
	}
}

// resultOfStatus is how a call has ended that leaves a record in a status: "" if it has not.
func resultOfStatus(s Status) string {
	switch s {
	case Absent:
		return observe.Free
	case Done:
		return observe.Done
	case Parked:
		return observe.Parked
	case Unknown:
		return observe.Unknown
	case Expired:
		return observe.Expired
	}
	return ""
}

// fail notes that an error is the work's own, and that nothing of the work remains. A nil one: it panicked.
func (o *observation) fail(err error) {
	switch {
	case o == nil || !o.Ran || resultOf(err) == observe.Conflict:
	case err == nil:
		o.Result = observe.Panicked
	default:
		o.Result = observe.Failed
	}
}

// end ends the call with an error. It is deferred: one that was told nothing, and has no error, has panicked.
func (o *observation) end(err *error) {
	if o == nil || o.ended == nil {
		return
	}
	o.Err = *err
	byError := resultOf(o.Err)
	switch {
	case o.Result != "" && o.Result != observe.Replayed: // what was told says more than the error
	case byError != "":
		o.Result = byError
	case o.Result == observe.Replayed:
	case o.Err == nil:
		o.Result = observe.Panicked
	case !o.Ran && o.caller.Err() != nil:
		o.Result = observe.Canceled
	default:
		o.Result = observe.Store
	}
	if o.Err == nil && o.Result == observe.Panicked {
		o.Err = errPanicked
	}
	watch.Guard(o.caller, o.logger, func() { o.ended(o.CallResult) })
}

var errPanicked = errors.New("once: a panic, or the end of the goroutine")

// resultOf is what the outermost failure says: what is below it is somebody else's.
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
