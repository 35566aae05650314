//go:build linux

// Command suite runs the tests of all modules, continues after failures, shows
// progress, and prints a summary: what failed, its output and how to run only
// that again, what was flaky, what was skipped and why, and where the time went.
//
// It wraps "go test -json". Each test program runs under a keeper (keeper.go),
// which gives it a temporary directory and fails the package if the program
// leaves files or processes behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const help = `usage: suite [-check] [-flaky N] [-load N] [-norace] [-p N] [-run REGEXP] [-timeout D] [PACKAGE...]

Runs the tests of the packages, or of all modules, to the end, and sums up. Long packages start first. A test that failed
is run again alone. If it passes then, it is listed as flaky and does not fail the run.

    go run ./integration/cmd/servers -- go run ./integration/cmd/suite
    go run ./integration/cmd/servers -- go run ./integration/cmd/suite -load 8
    go run ./integration/cmd/suite -check

    -check        what needs no server, without the race detector; results that go has cached are taken
    -flaky N      run what failed again, up to N times (default 2); 0: every failure fails the run
    -load N       keep N threads busy meanwhile, to find tests that depend on a quick machine
    -norace       without the race detector
    -p N          so many programs at once (default: the number of processors and 2; many only wait for servers)
    -run REGEXP   only such tests
    -timeout D    how long the tests of one package may take (default 30m, and as much again for each thread of
                  the load that a processor has to bear)

Exit codes: 1 if something failed, 2 for wrong usage, 130 if it was interrupted.
`

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case keeperVerb:
			os.Exit(keep(os.Args[2:]))
		case burnerVerb:
			burn(os.Args[2:])
		}
	}
	os.Exit(run(os.Args[1:]))
}

// packageTime ends a test that hangs.
const packageTime = 30 * time.Minute

// options are the command-line options.
type options struct {
	check    bool
	flaky    int
	load     int
	norace   bool
	parallel int
	run      string
	timeout  time.Duration
	packages []string
}

func parse(args []string) (*options, error) {
	o := &options{parallel: runtime.NumCPU() + 2}
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.BoolVar(&o.check, "check", false, "")
	flags.IntVar(&o.flaky, "flaky", 2, "")
	flags.BoolVar(&o.norace, "norace", false, "")
	flags.IntVar(&o.load, "load", 0, "")
	flags.IntVar(&o.parallel, "p", o.parallel, "")
	flags.StringVar(&o.run, "run", "", "")
	flags.DurationVar(&o.timeout, "timeout", 0, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	o.packages = flags.Args()
	if o.flaky < 0 || o.load < 0 || o.parallel < 1 || o.timeout < 0 {
		return nil, errors.New("-flaky, -load and -timeout are not negative, -p is positive")
	}
	if o.timeout == 0 {
		o.timeout = packageTime * time.Duration(1+o.load/runtime.NumCPU())
	}
	return o, nil
}

func run(args []string) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(help)
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "suite: %v\n\n%s", err, help)
		return exitUsage
	}
	// If our parent is killed, we end as if interrupted.
	endWithParent(syscall.SIGTERM)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	code, err := o.test(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "suite: %v\n", err)
		code = exitFailed
	}
	if ctx.Err() != nil {
		code = exitInterrupted
	}
	return code
}

// test runs everything and prints the report. Its error concerns the suite
// itself, not a test.
func (o *options) test(ctx context.Context) (code int, err error) {
	begun := time.Now()
	batches, err := o.plan(ctx)
	if err != nil {
		return 0, err
	}
	room, err := newRoom(os.TempDir())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, room.remove()) }()
	stopLoad, err := startLoad(o.load)
	if err != nil {
		return 0, err
	}
	defer stopLoad()

	l := newLedger(batches)
	screen := &progress{out: os.Stdout, ledger: l, begun: begun, last: begun}
	runAll(ctx, o, batches, room, func(e event) { screen.note(l.add(e)) }, screen.tick)
	l.close(ctx.Err() != nil)
	o.runAgain(ctx, l, room, screen.line)
	if err := l.takeUsage(room.usage()); err != nil {
		return 0, err
	}
	r := report{ledger: l, options: o, took: time.Since(begun), interrupted: ctx.Err() != nil, servers: serversRun()}
	r.print(os.Stdout)
	if l.failed() {
		return exitFailed, nil
	}
	return 0, nil
}
