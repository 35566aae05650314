package watch

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

type key string

// What an observer's context has to say about its end is nobody's business: also not that of context.Cause, and of the
// contexts that a handler makes of its own.
func TestOfAnObserversContextOnlyTheValuesCount(t *testing.T) {
	errOfCaller, errOfObserver := errors.New("of the caller"), errors.New("of the observer")
	for name, base := range map[string]func(context.Context) context.Context{
		"of the caller's": func(ctx context.Context) context.Context { return ctx },
		"of another":      func(context.Context) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			caller, end := context.WithCancelCause(context.WithValue(t.Context(), key("caller"), 1))
			defer end(nil)
			ctx, _ := Begin(caller, slog.New(slog.DiscardHandler), func(ctx context.Context) (context.Context, func(int)) {
				began, cancel := context.WithCancelCause(context.WithValue(base(ctx), key("observer"), 2))
				cancel(errOfObserver)
				return began, nil
			})
			if ctx.Value(key("caller")) != 1 || ctx.Value(key("observer")) != 2 {
				t.Errorf("the values are %v and %v", ctx.Value(key("caller")), ctx.Value(key("observer")))
			}
			below, cancel := context.WithCancel(ctx)
			defer cancel()
			for _, c := range []context.Context{ctx, below} {
				if c.Err() != nil || context.Cause(c) != nil {
					t.Errorf("it has ended before the caller's: %v, because of %v", c.Err(), context.Cause(c))
				}
			}
			end(errOfCaller)
			<-below.Done()
			for _, c := range []context.Context{ctx, below} {
				if !errors.Is(c.Err(), context.Canceled) || context.Cause(c) != errOfCaller {
					t.Errorf("it has ended with the caller's: %v, because of %v", c.Err(), context.Cause(c))
				}
			}
		})
	}
}
