// Command seedbugs applies known bugs to a copy of this tree, one at a time, and
// runs the test that must detect each.
//
// It exits with 1 if a bug is not detected, cannot be applied or does not
// compile, and with 2 for wrong usage. Most bugs in SQL need a server, which the
// servers tool starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/effectively-once/once/integration/seedbugs"
)

const usage = `usage: seedbugs [-only REGEXP] [-timeout DURATION]
       seedbugs [-only REGEXP] -list

Applies known bugs to a copy of this tree, one at a time, and runs the test that must detect each.

    go run ./integration/cmd/servers -- go run ./integration/cmd/seedbugs

    -only REGEXP   only bugs whose name or file matches
    -timeout D     time limit for the tests of one bug (default 1m)
    -list          print a line for each bug: its effect and the test that must detect it
`

func main() { os.Exit(run(os.Args[1:])) }

// task is what the command line asks for.
type task struct {
	bugs    []seedbugs.Bug
	timeout time.Duration
	list    bool
}

func run(args []string) int {
	t, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "seedbugs: %v\n\n%s", err, usage)
		return 2
	case t.list:
		fmt.Print(seedbugs.List(t.bugs))
		return 0
	}
	if err := t.try(); err != nil {
		fmt.Fprintf(os.Stderr, "seedbugs: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string) (*task, error) {
	t := &task{timeout: time.Minute}
	only := ""
	flags := flag.NewFlagSet("seedbugs", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.StringVar(&only, "only", "", "")
	flags.DurationVar(&t.timeout, "timeout", t.timeout, "")
	flags.BoolVar(&t.list, "list", false, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	for _, b := range seedbugs.All() {
		if pattern.MatchString(b.Name) || pattern.MatchString(b.File) {
			t.bugs = append(t.bugs, b)
		}
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("what is %q?", flags.Arg(0))
	case t.timeout <= 0:
		return nil, errors.New("-timeout is not positive")
	case len(t.bugs) == 0:
		return nil, fmt.Errorf("no bug is named like %q", only)
	}
	return t, nil
}

func (t *task) width() (widest int) {
	for _, b := range t.bugs {
		widest = max(widest, len(b.Name))
	}
	return widest
}

func (t *task) try() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	root, err := seedbugs.Root(ctx)
	if err != nil {
		return err
	}
	runner, end, err := seedbugs.Begin(ctx, root, t.timeout)
	if err != nil {
		return err
	}
	defer end()
	fmt.Fprintf(os.Stderr, "seedbugs: %d bugs; first, their tests without them\n", len(t.bugs))
	return runner.Run(ctx, t.bugs, func(r seedbugs.Result) { fmt.Println(r.Line(t.width())) })
}
