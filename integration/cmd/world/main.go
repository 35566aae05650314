// Command world plays simulated worlds around the real code of once, and reports
// which laws they break. See docs/laws.md.
//
// It exits with 1 if a law is broken, with 2 for wrong usage, and with 3 if a
// world makes no progress.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/effectively-once/once/integration/world"
)

const usage = `usage: world [-kind KIND] [-seed N] [-seeds N] [-for DURATION] [-law LAW] [-first] [-shrink] [-history]
       world -power [-kind KIND] [-seeds N] [-for DURATION] [-law LAW] [-only REGEXP]

Plays worlds, one for each seed, and reports which laws they break.

    go run ./integration/cmd/world -seeds 1000
    go run ./integration/cmd/world -seed 305 -shrink

    -kind KIND     kind of world (default small)
    -seed N        first seed (default 1)
    -seeds N       number of seeds (default 1)
    -for D         stop after this time, however many seeds are left
    -law LAW       look for this law only
    -first         stop at the first seed that breaks a law
    -shrink        make the first world that breaks a law smaller, and tell its story
    -history       print all that happened, call by call
    -power         put known bugs into a copy of the tree, and tell how many seeds find each
    -only REGEXP   with -power: only bugs whose name matches

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == "-power" {
		return power(ctx, args[1:])
	}
	switch _, err := world.ParseTask(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		for _, k := range world.Kinds() {
			fmt.Printf("    %-14s %s\n", k.Name, k.About)
		}
		return 0
	case err != nil:
		return wrong(err)
	}
	dir, err := os.MkdirTemp("", "once-world-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	root, err := treeRoot(ctx)
	if err != nil {
		return failed(err)
	}
	binary, err := world.Build(ctx, root, dir, "world.test")
	if err != nil {
		return failed(err)
	}
	cmd, err := binary.Command(ctx, args)
	if err != nil {
		return failed(err)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return failed(err)
	}
	return cmd.ProcessState.ExitCode()
}

func wrong(err error) int {
	fmt.Fprintf(os.Stderr, "world: %v\n\n%s", err, usage)
	return 2
}

func failed(err error) int {
	fmt.Fprintf(os.Stderr, "world: %v\n", err)
	return 1
}

// treeRoot is the directory of go.work.
func treeRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", err
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == "off" {
		return "", errors.New("not in the workspace: run it in a checkout of once")
	}
	return filepath.Dir(file), nil
}
