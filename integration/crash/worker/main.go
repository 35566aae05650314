//go:build linux

// Command worker works through once until it dies. The tests of package crash build it and start it.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/effectively-once/once/integration/crash"
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what a worker writes to its error output is a failure of the test
	if err := crash.Work(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}
