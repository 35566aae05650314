package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// Exit codes. What a verb returns as its own result is in its help.
const (
	exitOK     = 0
	exitWrong  = 1 // the demo ran, and the protected side was wrong
	exitUsage  = 2
	exitFailed = 3 // the verb could not do its work
)

// cli is the command line, a field per verb.
type cli struct {
	Demo    demoCommand    `cmd:"" help:"Show a payment handler with and without once, under duplicates, races and kills."`
	Version versionCommand `cmd:"" help:"Print the version."`
	Worker  workerCommand  `cmd:"" name:"demo-worker" hidden:"" help:"A worker process of the demo."`
}

const description = `Effectively-once processing for Go: sync.Once that survives crashes, restarts, retries and redelivery.

Start with: once demo`

// errWrong is the answer no, not a failure: it has been printed already.
var errWrong = errors.New("the protected side was wrong")

// run runs the command. The handlers are what the demo compares.
func run(args []string, handlers map[string]demo.Handler) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	parser, err := kong.New(&cli{}, kong.Name("once"), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(handlers))
	if err != nil {
		return fail(exitFailed, err)
	}
	verb, err := parser.Parse(args)
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%w (see once --help)", err))
	}
	err = verb.Run()
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errWrong):
		return exitWrong
	case ctx.Err() != nil:
		return fail(exitFailed, errors.New("interrupted"))
	default:
		return fail(exitFailed, err)
	}
}

func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "once:", err)
	return code
}
