package once

import (
	"context"
	"errors"
	"log/slog"

	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
)

// Observer observes each [Do], [DoTx], [InTx] and [Operation.Ask] on the stores
// whose Options name it, for metrics and spans. Package otelonce implements it
// for OpenTelemetry. An Observer is called concurrently, and each
// call waits for it. It must not use the store. If it panics, the panic is
// logged and the call continues.
type Observer interface {
	// Begin is called when a call starts. verb is "Do", "DoTx", "InTx" or "Ask".
	// It returns the context for the rest of the call, a child of ctx, or nil to
	// keep ctx. It also returns a function, or nil, that is called once when the
	// call ends, even by a panic. A call that waits in this process for another
	// call with its key is observed too, and so is an Ask that Do makes.
	Begin(ctx context.Context, verb string, k Key) (context.Context, func(CallResult))
}

// CallResult describes how a call ended.
type CallResult struct {
	Result   string // one of the results that package observe lists
	Replayed bool   // as in Report
	Attempt  int64  // as in Report
	Ran      bool   // the work was entered; a speculative DoTx of a duplicate may enter it without effect
	Err      error  // the error that the caller gets
}

// EventObserver is an [Observer] that also observes the steps of keys. It is
// optional, and called in the same way.
type EventObserver interface {
	Observer

	// Event is called with the context of the call that takes the step.
	Event(context.Context, Event)
}

// Event is a step in the life of a key. Package observe lists the names.
type Event struct {
	Name    string
	Key     Key
	Attempt int64 // 0: not known, or none
	Err     error // the reason, if there is one
}

// eventOf returns the step of an attempt that ends with this status.
func eventOf(status Status, out Outcome) string {
	switch {
	case status == Done && out.Rejected:
		return observe.Rejected
	case status == Done:
		return observe.Done
	case status == Parked:
		return observe.Parked
	case status == Absent:
		return observe.Released
	}
	return observe.Unknown
}

// observation is an observed call in progress. A nil observation observes
// nothing.
type observation struct {
	CallResult
	caller context.Context
	logger *slog.Logger
	ended  func(CallResult)
}

// beginObservation returns the context for the rest of the call, and nil if
// observer is nil. If the observer panics, the panic is logged and the call
// continues unobserved.
func beginObservation(ctx context.Context, observer Observer, logger *slog.Logger, verb string, k Key) (context.Context, *observation) {
	if observer == nil {
		return ctx, nil
	}
	o := &observation{caller: ctx, logger: logger}
	watch.Guard(ctx, logger, func() {
		var began context.Context
		if began, o.ended = observer.Begin(o.caller, verb, k); began != nil {
			ctx = began
		}
	})
	return ctx, o
}

// enter records that the work was entered.
func (o *observation) enter() {
	if o != nil {
		o.Ran = true
	}
}

// tell records which attempt the answer or the error is about and, if there is
// no error, the state of the record.
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

// resultOfStatus returns the result of a call that leaves a record in this
// status, or "" if the call has not ended then.
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

// fail records that the work failed without effect. If err is nil, it panicked.
func (o *observation) fail(err error) {
	switch {
	case o == nil || !o.Ran || resultOf(err) == observe.Conflict:
	case err == nil:
		o.Result = observe.Panicked
	default:
		o.Result = observe.Failed
	}
}

// end ends the observation. It is deferred: a call without a result and without
// an error has panicked.
func (o *observation) end(err *error) {
	if o == nil || o.ended == nil {
		return
	}
	o.Err = *err
	byError := resultOf(o.Err)
	switch {
	case o.Result != "" && o.Result != observe.Replayed: // more precise than the error
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
