// Command consoleload measures the pages of the console on a store with many keys.
//
// It fills an empty database with the statements of a month of a busy shop, and then
// requests each page as somebody on call does. It exits with 1 if a page fails, or
// takes longer than the limit in more than one of twenty requests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

const usage = `usage: consoleload [-store postgres|sqlite] [-keys N] [-messages N] [-requests N] [-limit DURATION]
                   [-database NAME]

Fills a store, requests each page of the console, and prints how long the pages took.

    go run ./integration/cmd/servers -only postgres -- go run ./integration/cmd/consoleload

    -store NAME    postgres (default), on the server that ONCE_TEST_POSTGRES names, or sqlite, in a temporary file
    -keys N        keys in the store (default 10000000, which take 4 GB)
    -messages N    messages in the outbox, and as many on the shelf (default: a tenth of the keys)
    -requests N    requests of each page (default 100)
    -limit D       exit with 1 if p95 of a page is above it (default 200ms); a search of all keys has none
    -database NAME use this database, or file, and keep it; a later run with the same numbers measures without filling it
`

type settings struct {
	store, database          string
	keys, messages, requests int
	limit                    time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, trouble io.Writer) int {
	s, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return 0
	case err != nil:
		fmt.Fprintf(trouble, "consoleload: %v\n\n%s", err, usage)
		return 2
	}
	slow, err := measure(ctx, s, out)
	if err != nil {
		fmt.Fprintf(trouble, "consoleload: %v\n", err)
		return 1
	}
	if len(slow) > 0 {
		fmt.Fprintf(trouble, "consoleload: above %v: %s\n", s.limit, strings.Join(slow, ", "))
		return 1
	}
	return 0
}

func parse(args []string) (s settings, err error) {
	f := flag.NewFlagSet("consoleload", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&s.store, "store", "postgres", "")
	f.IntVar(&s.keys, "keys", 10_000_000, "")
	f.IntVar(&s.messages, "messages", -1, "")
	f.IntVar(&s.requests, "requests", 100, "")
	f.DurationVar(&s.limit, "limit", 200*time.Millisecond, "")
	f.StringVar(&s.database, "database", "", "")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.messages < 0 {
		s.messages = s.keys / 10
	}
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("there is no argument %q", f.Arg(0))
	case s.store != "postgres" && s.store != "sqlite":
		return s, fmt.Errorf("there is no store %q", s.store)
	case s.keys < fewest || s.messages < fewest:
		return s, fmt.Errorf("%d keys and %d messages: use at least %d, so that each page has something", s.keys, s.messages, fewest)
	case s.requests < 1:
		return s, fmt.Errorf("%d requests: use at least 1", s.requests)
	}
	return s, nil
}

// measure fills the store and drives the console. It returns the pages that are too
// slow.
func measure(ctx context.Context, s settings, out io.Writer) (slow []string, err error) {
	open := openPostgres
	if s.store == "sqlite" {
		open = openSQLite
	}
	db, err := open(ctx, s)
	if err != nil {
		return nil, err
	}
	defer db.close()
	began := time.Now()
	if !db.full {
		if err := db.fill(ctx, s); err != nil {
			return nil, fmt.Errorf("filling the store: %w", err)
		}
	}
	fmt.Fprintf(out, "%s with %d keys, %d messages in the outbox and %d on the shelf, filled in %v\n\n",
		s.store, s.keys, s.messages, s.messages, time.Since(began).Round(time.Second))
	return drive(ctx, db.store, s, out)
}

// noServer says how to get a server.
func noServer() error {
	return fmt.Errorf("%s is not set: run it as go run ./integration/cmd/servers -only postgres -- go run ./integration/cmd/consoleload", testenv.PostgresVar)
}
