package once

import (
	"context"

	"github.com/effectively-once/once/internal/sight"
)

// Observer sees each [Do], [DoTx], [InTx] and [Operation.Ask] on the stores that have it in their Options: for metrics and
// spans, as package observe/otelobserve makes them. It is called by many goroutines, the caller of each waits for it, and
// it must not use the store. It decides nothing: if it panics, that is logged, and the call goes on.
type Observer interface {
	// Begin returns the context that the call goes on with, a child of ctx, or nil for ctx itself; and a function that is
	// called once, when the call has ended, also if that is by a panic; or nil. The verb is "Do", "DoTx", "InTx" or "Ask".
	// A call that waits in this process for another one of its key is a call, and so is an Ask that Do makes.
	Begin(ctx context.Context, verb string, k Key) (context.Context, func(Ended))
}

// Ended is how a call has ended.
type Ended struct {
	Result   string // one word, of those that package observe lists
	Replayed bool   // as in Report
	Attempt  int64  // as in Report
	Ran      bool   // the work was entered. Of DoTx that of a duplicate may be, and has no effect then
	Err      error  // as the caller gets it
}

// watch begins what an Observer gets to see of a call: nil, if there is none.
func watch(ctx context.Context, s Store, verb string, k Key) (context.Context, *sight.Call) {
	if s == nil || s.Options() == nil || s.Options().Observer == nil {
		return ctx, nil
	}
	o := s.Options()
	return sight.Begin(ctx, o.Logger, func(ctx context.Context) (context.Context, func(sight.Ended)) {
		ctx, ended := o.Observer.Begin(ctx, verb, k)
		if ended == nil {
			return ctx, nil
		}
		return ctx, func(e sight.Ended) { ended(Ended(e)) }
	})
}
