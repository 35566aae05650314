package seedbugs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Runner tries bugs in a copy of the tree.
type Runner struct {
	Tree    string        // the copy, which it changes
	Work    string        // a directory for its own files
	Timeout time.Duration // of the tests for one bug

	whole map[string]string // test binaries without a bug, by package
}

// Result is what became of one bug.
type Result struct {
	Bug     Bug
	Verdict Verdict
	Seconds float64 // to run the tests, without building them
	Err     error   // why it does not count as noticed
}

// Healthy runs tests without any bug: one that is not passed and run in full proves nothing afterwards.
func (r *Runner) Healthy(ctx context.Context, t Test) error {
	binary, ok := r.whole[t.Package]
	if !ok {
		binary = filepath.Join(r.Work, fmt.Sprintf("whole%d.test", len(r.whole)))
		if err := r.build(ctx, t.Package, binary); err != nil {
			return err
		}
		if r.whole == nil {
			r.whole = make(map[string]string)
		}
		r.whole[t.Package] = binary
	}
	verdict, output := r.run(ctx, binary, t)
	if verdict != Passed {
		return fmt.Errorf("%v, without a bug: %w", t, unexpected(verdict, output))
	}
	return nil
}

// Try puts a bug in, runs its test, and takes it out again.
func (r *Runner) Try(ctx context.Context, b Bug) Result {
	result := Result{Bug: b}
	binary := filepath.Join(r.Work, "bug.test")
	result.Err = b.in(r.Tree, func() error {
		if err := r.build(ctx, b.Test.Package, binary); err != nil {
			return err
		}
		began := time.Now()
		verdict, output := r.run(ctx, binary, b.Test)
		result.Verdict, result.Seconds = verdict, time.Since(began).Seconds()
		if !verdict.Noticed() {
			return fmt.Errorf("%v: %w", b.Test, unexpected(verdict, output))
		}
		return nil
	})
	return result
}

// build compiles the tests of a package. A bug that does not compile is no bug.
func (r *Runner) build(ctx context.Context, pkg, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary, pkg)
	cmd.Dir = r.Tree
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the tests of %s do not compile: %w\n%s", pkg, err, output)
	}
	return nil
}

const grace = 20 * time.Second // for a test binary to end itself at its deadline

// run does what go test does with a binary: it runs in the directory of its package.
func (r *Runner) run(ctx context.Context, binary string, t Test) (Verdict, string) {
	limited, cancel := context.WithTimeout(ctx, r.Timeout+grace)
	defer cancel()
	cmd := exec.CommandContext(limited, binary, "-test.run="+t.Run, "-test.v", "-test.timeout="+r.Timeout.String())
	cmd.Dir = filepath.Join(r.Tree, filepath.FromSlash(t.Package))
	cmd.WaitDelay = time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if limited.Err() != nil && ctx.Err() == nil {
		return Hung, output.String()
	}
	return judge(output.String(), err), output.String()
}

// Run tries bugs one after the other, and tells each result as it is known. Their tests are checked before it and after
// it, so that neither a test that always fails nor a server that has died in between passes for one that notices.
func (r *Runner) Run(ctx context.Context, bugs []Bug, tell func(Result)) error {
	tests := distinct(bugs)
	if err := r.healthy(ctx, tests); err != nil {
		return err
	}
	missed := 0
	for _, b := range bugs {
		result := r.Try(ctx, b)
		if err := ctx.Err(); err != nil {
			return err
		}
		if tell(result); result.Err != nil {
			missed++
		}
	}
	if err := r.healthy(ctx, tests); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d bugs were not noticed", missed, len(bugs))
	}
	return nil
}

func (r *Runner) healthy(ctx context.Context, tests []Test) error {
	var errs []error
	for _, t := range tests {
		if err := r.Healthy(ctx, t); err != nil {
			errs = append(errs, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// distinct are the tests that bugs name, each once, in their order.
func distinct(bugs []Bug) []Test {
	var tests []Test
	seen := make(map[Test]bool)
	for _, b := range bugs {
		if !seen[b.Test] {
			seen[b.Test] = true
			tests = append(tests, b.Test)
		}
	}
	return tests
}

// Begin makes a runner with a copy of the tree in a directory of its own, which end removes.
func Begin(ctx context.Context, root string, timeout time.Duration) (r *Runner, end func(), err error) {
	dir, err := os.MkdirTemp("", "once-seedbugs-")
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = os.RemoveAll(dir) } // what is left is in a directory for temporary files
	r = &Runner{Tree: filepath.Join(dir, "tree"), Work: dir, Timeout: timeout}
	if err := Copy(ctx, root, r.Tree); err != nil {
		end()
		return nil, nil, err
	}
	return r, end, nil
}
