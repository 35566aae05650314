package once

import (
	"context"
	"log/slog"

	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
)

// Event is a step in the life of a key. Package observe lists the names.
type Event struct {
	Name    string
	Key     Key
	Attempt int64 // 0: not known, or none
	Err     error // why, where there is a reason
}

// EventObserver is an [Observer] that also sees the steps of keys. It is optional. What is said of Observer is true of it.
type EventObserver interface {
	Observer

	// Event is called with the context of the call that the step is a part of.
	Event(context.Context, Event)
}

// Tell logs a step of a key at the level debug, and tells an [EventObserver]. It is for those who change records without
// the functions of this package.
func (o *Options) Tell(ctx context.Context, e Event) {
	if o.Logger.Enabled(ctx, slog.LevelDebug) {
		of := []any{"event", e.Name, "key", e.Key, "attempt", e.Attempt}
		if e.Err != nil {
			of = append(of, "error", e.Err)
		}
		o.Logger.DebugContext(ctx, "once: event", of...)
	}
	if observer, ok := o.Observer.(EventObserver); ok {
		watch.Guard(ctx, o.Logger, func() { observer.Event(ctx, e) })
	}
}

func (c *call) event(ctx context.Context, name string, attempt int64, err error) {
	c.opts.Tell(ctx, Event{Name: name, Key: c.key, Attempt: attempt, Err: err})
}

// eventOf is the step that an attempt takes by ending in a status.
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

// KeyAnswer is what another system has said about an idempotency key that the work of a claim has sent it.
type KeyAnswer string

const (
	// KeyReplayed: the other system has answered as it did before, so an earlier attempt had reached it.
	KeyReplayed KeyAnswer = observe.KeyReplayed

	// KeyConflict: the other system knows the key for another request. The work did not happen by this request, and
	// something else did by an earlier one: two callers share a key, or one changes what it repeats.
	KeyConflict KeyAnswer = observe.KeyConflict
)

// NoteKeyAnswer says, from inside the work of [Do], what the other system has said about the key: with the context that the
// work was given. It is counted and, if it is a conflict, logged; it decides nothing, that is for what the work returns.
// httponce.Transport calls it for what it recognises. Outside of a claim nothing happens.
func NoteKeyAnswer(ctx context.Context, a KeyAnswer, reason error) {
	in, ok := ctx.Value(claimKey{}).(claimed)
	if !ok || in.call == nil {
		return
	}
	if a == KeyConflict {
		in.call.opts.Logger.WarnContext(ctx, "once: the other system knows the key for another request", "key", in.Key,
			"attempt", in.Attempt, "error", reason)
	}
	in.call.event(ctx, string(a), in.Attempt, reason)
}
