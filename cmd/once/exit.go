package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/democommand"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/prove"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// Exit codes, the same for all verbs.
const (
	exitOK     = 0
	exitNo     = 1 // the answer is no: the demo's protected side was wrong, doctor found something, you did not say yes
	exitUsage  = 2
	exitFailed = 3 // the verb could not do its work
	exitMoved  = 4 // what was named is not there, or has moved on since it was read
)

const exitHelp = "Exit status: 0 success, 1 negative answer, 2 wrong usage, 3 failure, 4 not found or changed meanwhile."

// errNo reports a negative answer, which has already been printed. It is not a
// failure.
var errNo = errors.New("no")

// coded is an error with an exit code.
type coded struct {
	code int
	text string
}

func (c coded) Error() string { return c.text }

func usage(format string, args ...any) error {
	return coded{exitUsage, fmt.Sprintf(format, args...)}
}

func moved(format string, args ...any) error {
	return coded{exitMoved, fmt.Sprintf(format, args...)}
}

// exitOf prints the error of a verb and returns its exit code.
func exitOf(ctx context.Context, err error) int {
	var c coded
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errNo), errors.Is(err, democommand.ErrWrong):
		return exitNo
	case ctx.Err() != nil:
		return fail(ctx, exitFailed, errors.New("interrupted"))
	case errors.As(err, &c):
		return fail(ctx, c.code, err)
	case errors.Is(err, target.ErrURL), errors.Is(err, target.ErrName), errors.Is(err, target.ErrLacks), errors.Is(err, serve.ErrConfig),
		errors.Is(err, doctor.ErrBroker), errors.Is(err, consoleserver.ErrConfig), errors.Is(err, prove.ErrWord):
		return fail(ctx, exitUsage, err)
	case errors.Is(err, once.ErrLeaseLost):
		return fail(ctx, exitMoved, fmt.Errorf("the record has changed since it was read, and nothing was changed: %w", err))
	case errors.Is(err, once.ErrInvalid) && strings.Contains(err.Error(), "call Migrate"): // as a program would
		return fail(ctx, exitFailed, fmt.Errorf("%w: run once migrate up or once migrate sql", err))
	}
	return fail(ctx, exitFailed, err)
}

// fail prints an error after removing secrets. Errors of all verbs and drivers
// pass through it.
func fail(ctx context.Context, code int, err error) int {
	fmt.Fprintln(os.Stderr, "once:", show.Lines(secret.From(ctx).Hide(err.Error())))
	return code
}
