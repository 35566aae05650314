// Package watch calls observers, and keeps their panics and their contexts from what they observe.
package watch

import (
	"context"
	"log/slog"

	"github.com/effectively-once/once/internal/logs"
)

// Begin begins something that is observed, and returns the context to go on with, and what ends it. A panic of the observer
// is logged, and then it goes on unobserved. Of the observer's context it takes the values and no more: neither a deadline
// that it has, nor that it lacks the caller's, has a part in what is done.
func Begin[E any](ctx context.Context, logger *slog.Logger,
	begin func(context.Context) (context.Context, func(E))) (context.Context, func(E)) {

	caller := ctx
	var ended func(E)
	Guard(caller, logger, func() {
		began, end := begin(caller)
		ended = end
		if began != nil {
			ctx = adopted{caller, context.WithoutCancel(began)}
		}
	})
	return ctx, func(e E) {
		if ended != nil {
			Guard(caller, logger, func() { ended(e) })
		}
	}
}

// adopted is a context with the values of another one before its own. That one has no end: in package context, how one
// ends is a value, too, which context.Cause asks for.
type adopted struct {
	context.Context
	values context.Context
}

func (a adopted) Value(key any) any {
	if v := a.values.Value(key); v != nil {
		return v
	}
	return a.Context.Value(key)
}

// Guard calls an observer. If it panics, that is logged.
func Guard(ctx context.Context, logger *slog.Logger, observe func()) {
	defer func() {
		if p := recover(); p != nil {
			logger.ErrorContext(ctx, "once: the observer panicked", logs.Spaced(""), "panic", p)
		}
	}()
	observe()
}
