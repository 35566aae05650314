package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/integration/seedbugs"
	"github.com/effectively-once/once/integration/world"
)

// powerTask puts bugs back, one at a time, and counts the seeds until a world finds
// each.
type powerTask struct {
	kind  string
	law   string // empty: any
	seeds int
	limit time.Duration // for each bug
	bugs  []seedbugs.WorldBug
	tree  string // a copy
	dir   string // for binaries
	whole *world.Binary
}

func power(ctx context.Context, args []string) int {
	t, only := &powerTask{}, ""
	flags := flag.NewFlagSet("world -power", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // wrong prints the error
	flags.StringVar(&t.kind, "kind", "", "")
	flags.StringVar(&t.law, "law", "", "")
	flags.IntVar(&t.seeds, "seeds", 2000, "")
	flags.DurationVar(&t.limit, "for", 2*time.Minute, "")
	flags.StringVar(&only, "only", "", "")
	if err := flags.Parse(args); err != nil {
		return wrong(err)
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return wrong(err)
	}
	for _, b := range seedbugs.OfTheWorld() {
		if pattern.MatchString(b.Name) {
			t.bugs = append(t.bugs, b)
		}
	}
	if err := t.run(ctx); err != nil {
		return failed(err)
	}
	return 0
}

func (t *powerTask) run(ctx context.Context) error {
	root, err := treeRoot(ctx)
	if err != nil {
		return err
	}
	runner, end, err := seedbugs.Begin(ctx, root, t.limit)
	if err != nil {
		return err
	}
	defer end()
	t.tree, t.dir = runner.Tree, runner.Work
	if t.whole, err = world.Build(ctx, t.tree, t.dir, "whole.test"); err != nil {
		return err
	}
	fmt.Printf("%-45s %-7s %-40s %6s %8s\n", "bug", "kind", "laws", "seeds", "seconds")
	found := 0
	for _, b := range t.bugs {
		hit, err := t.find(ctx, b)
		if err != nil {
			fmt.Printf("%-45s %v\n", b.Name, err)
			continue
		}
		if hit.law != "" {
			found++
		} else {
			hit.law = "not found"
		}
		fmt.Printf("%-45s %-7s %-40s %6d %8.1f\n", b.Name, hit.kind, hit.law, hit.seeds, hit.took.Seconds())
	}
	fmt.Printf("%d of %d found\n", found, len(t.bugs))
	return nil
}

// hit is how a bug was found.
type hit struct {
	kind  string
	law   string // empty: it was not
	seeds int
	took  time.Duration
}

// find plays worlds with a bug until one breaks a law that it does not break
// without it.
func (t *powerTask) find(ctx context.Context, b seedbugs.WorldBug) (h hit, err error) {
	h.kind = t.kind
	if h.kind == "" {
		h.kind = b.Kind
	}
	err = b.In(t.tree, func() error {
		binary, err := world.Build(ctx, t.tree, t.dir, "bug.test")
		if err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}
		for began := time.Now(); h.seeds < t.seeds && h.took < t.limit; h.took = time.Since(began) {
			seeds, law, err := t.first(ctx, binary, h.kind, h.seeds+1, t.seeds-h.seeds, t.limit-h.took)
			if err != nil {
				return fmt.Errorf("%s: %w", b.Name, err)
			}
			if h.seeds += seeds; law == "" {
				continue
			}
			_, without, err := t.first(ctx, t.whole, h.kind, h.seeds, 1, t.limit)
			if err != nil {
				return fmt.Errorf("without a bug: %w", err)
			}
			if without == "" {
				h.law, h.took = law, time.Since(began)
				return nil
			}
		}
		return nil
	})
	return h, err
}

// first plays worlds until one breaks a law, or ends its process. It returns how
// many it has played, and all laws that it broke.
func (t *powerTask) first(ctx context.Context, binary *world.Binary, kind string, from, seeds int,
	limit time.Duration) (n int, law string, err error) {

	cmd, err := binary.Command(ctx, []string{"-kind", kind, "-seed", strconv.Itoa(from), "-seeds", strconv.Itoa(seeds),
		"-for", limit.String(), "-law", t.law, "-first", "-brief"})
	if err != nil {
		return 0, "", err
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, "", err
	}
	return readBrief(string(out), cmd.ProcessState.ExitCode())
}

// readBrief reads what worlds print with -brief. Of those that ended their process,
// the last one counts as played.
func readBrief(out string, exit int) (n int, law string, err error) {
	for line := range strings.Lines(out) {
		_, _ = fmt.Sscanf(line, "begins %d", &n)
		if strings.HasPrefix(line, "seeds ") {
			_, _ = fmt.Sscanf(line, "seeds %d law %s", &n, &law)
			return n, law, nil
		}
	}
	switch {
	case n > 0 && exit == crashExit:
		return n, crashed, nil
	case n > 0 && exit == world.StallExit:
		return n, stalled, nil
	}
	return 0, "", fmt.Errorf("no world was played, and the exit code is %d:\n%s", exit, out)
}

// What is told in the place of a law if a world did not come to its end.
const (
	crashed = "crashed" // the process ended, such as by a panic
	stalled = "stalled" // it made no progress
)

const crashExit = 2 // of the runtime, and of tests that panic
