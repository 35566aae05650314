// Command release prepares a release of all modules in this repository: it
// makes the commits and the tags, and proves that users can get the modules.
// It pushes nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const help = `usage: release VERSION
       release -check VERSION
       release -notes VERSION

    go run ./integration/cmd/release v0.1.0

Prepares VERSION of all published modules, from HEAD: the branch release/VERSION with a tag for each module, which is
then checked out, and the branch after/VERSION, which main continues from. The work is done in a temporary clone. If
anything fails, the repository is left as it was. Nothing is pushed.

    -check  prove that users can get VERSION, which is tagged at HEAD, and do nothing else
    -notes  print the section of CHANGELOG.md about VERSION

Exit codes: 1 if the release is refused or fails its proof, 2 for wrong usage.
`

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is printed below
	check := flags.Bool("check", false, "")
	notes := flags.Bool("notes", false, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, help)
		return 0
	}
	if err == nil && (flags.NArg() != 1 || flags.Arg(0) == "" || *check && *notes) {
		err = errors.New("one version is required, such as VERSION=v0.1.0 for make, or v0.1.0 as the argument")
	}
	if err != nil {
		fmt.Fprintf(complaints, "release: %v\n\n%s", err, help)
		return exitUsage
	}
	if err := act(ctx, out, flags.Arg(0), *check, *notes); err != nil {
		fmt.Fprintf(complaints, "release: %v\n", err)
		return exitFailed
	}
	return 0
}

func act(ctx context.Context, out io.Writer, version string, check, notes bool) error {
	repository, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	if err := checkVersion(version); err != nil {
		return err
	}
	if notes {
		return printNotes(out, repository, version)
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	p, err := newProof(ctx, out, work, version)
	if err != nil {
		return err
	}
	if check {
		return p.run(ctx, repository)
	}
	r, err := prepare(ctx, repository, filepath.Join(work, "clone"), version, time.Now())
	if err != nil {
		return err
	}
	if err := p.run(ctx, r.clone); err != nil {
		return fmt.Errorf("users could not get %s, so nothing was kept: %w", version, err)
	}
	if err := r.deliver(ctx, repository); err != nil {
		return err
	}
	r.describe(out)
	return nil
}

func printNotes(out io.Writer, repository, version string) error {
	text, err := os.ReadFile(filepath.Join(repository, changelogName))
	if err != nil {
		return err
	}
	s, err := findSection(string(text), version)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, s.body)
	return err
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, "git", args...), dir)
}

func output(cmd *exec.Cmd, dir string) (string, error) {
	var out, complaints strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &complaints
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), complaints.String())
	}
	return strings.TrimSpace(out.String()), nil
}
