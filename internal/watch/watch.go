// Package watch calls observers, and isolates what they observe from their
// panics and contexts.
package watch

import (
	"context"
	"log/slog"

	"github.com/effectively-once/once/internal/logs"
)

// Begin calls begin, and returns the context to continue with and the function
// that ends the observation. If the observer panics, the panic is logged and
// the observed code continues unobserved. Only the values of the observer's
// context are used: its deadline, or the lack of one, has no effect.
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

// adopted is a context that looks up values in another context first. That
// context must not end, because [context.Cause] looks up how a context ended as
// a value.
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

// Guard calls an observer, and logs its panic.
func Guard(ctx context.Context, logger *slog.Logger, observe func()) {
	defer func() {
		if p := recover(); p != nil {
			logger.ErrorContext(ctx, "once: the observer panicked", logs.Spaced(""), "panic", p)
		}
	}()
	observe()
}
