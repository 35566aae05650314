// Package contain calls functions of users. Their panics, and a
// [runtime.Goexit], end the call and nothing else.
package contain

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
)

// Error is the error of a function that panicked or ended its goroutine. It
// wraps nothing: whatever a function panics with, it has not returned it. Nor does
// its text show that, except an error of Go itself, because errors are stored and
// shown to people, and the value of a panic may have an address with a password in
// it.
type Error struct {
	Stack []byte

	what     string
	panicked bool
	value    any // of the panic
}

func (e *Error) Error() string {
	if bug, ok := e.value.(runtime.Error); ok {
		return fmt.Sprintf("once: %s panicked, see the log: %s", e.what, errtree.Panic(bug))
	}
	if e.panicked {
		return fmt.Sprintf("once: %s panicked, see the log", e.what)
	}
	return fmt.Sprintf("once: %s ended its goroutine, see the log", e.what)
}

// Resume ends the calling goroutine in the same way.
func (e *Error) Resume() {
	if e.panicked {
		panic(e.value)
	}
	runtime.Goexit()
}

// Call calls f, which is what of the user's, and returns its error after
// [errtree.Tame]. If f does not return, it returns an *Error. f runs in its own
// goroutine, because runtime.Goexit cannot be stopped in the goroutine that it
// ends.
func Call(what string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		returned := false
		defer func() {
			if !returned {
				value := recover()
				result <- &Error{Stack: debug.Stack(), what: what, panicked: value != nil, value: value}
			}
		}()
		err := errtree.Tame(f())
		returned = true
		result <- err
	}()
	return <-result
}

// Logged is Call, and logs the stack of a function that does not return, and what
// it panicked with.
func Logged(ctx context.Context, logger *slog.Logger, what string, f func() error) error {
	err := Call(what, f)
	if ended, ok := err.(*Error); ok {
		ended.log(ctx, logger)
	}
	return err
}

// Recovered returns the error of what, which panicked with value, and logs it. It
// is called where the panic is recovered.
func Recovered(ctx context.Context, logger *slog.Logger, what string, value any) *Error {
	e := &Error{Stack: debug.Stack(), what: what, panicked: true, value: value}
	e.log(ctx, logger)
	return e
}

func (e *Error) log(ctx context.Context, logger *slog.Logger) {
	attrs := []any{logs.Spaced(e.Error()), "function", e.what, "stack", string(e.Stack)}
	if e.panicked {
		attrs = append(attrs, "panic", e.value)
	}
	logger.ErrorContext(ctx, "once: a function of the program panicked, or ended its goroutine", attrs...)
}
