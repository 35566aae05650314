package seedbugs

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// Verdict is how the tests went that were meant to notice a bug.
type Verdict int

const (
	Broken  Verdict = iota // they were not built, or what they said means nothing
	Passed                 // all of them
	Skipped                // one of them at least
	Absent                 // the pattern names none
	Failed                 // one of them at least
	Late                   // the deadline of the test binary has ended them, and named them
	Hung                   // nothing has ended them but the runner
)

func (v Verdict) String() string {
	return [...]string{"broken", "passed", "skipped", "no such test", "failed", "failed at its deadline", "hung"}[v]
}

// Noticed reports whether v is what a bug has to lead to.
func (v Verdict) Noticed() bool { return v == Failed || v == Late }

// line finds a test, not only a parent of one, that ended so.
func line(result string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\s*--- ` + result + `: (\S+)`)
}

var (
	passed, skipped, failed = line("PASS"), line("SKIP"), line("FAIL")
	crashed                 = regexp.MustCompile(`(?m)^(panic|fatal error): `)
)

const late = "panic: test timed out after "

// judge reads the output of a test binary, run with -test.v, and how it exited.
func judge(output string, exit error) Verdict {
	var code *exec.ExitError
	switch {
	case exit == nil && skipped.MatchString(output):
		return Skipped
	case exit == nil && passed.MatchString(output):
		return Passed
	case exit == nil:
		return Absent
	case !errors.As(exit, &code) || code.ExitCode() < 0:
		return Broken
	case strings.Contains(output, late):
		return Late
	case failed.MatchString(output), crashed.MatchString(output):
		return Failed
	}
	return Broken
}

// unexpected describes an unexpected verdict and shows the end of the output.
func unexpected(v Verdict, output string) error {
	const shown = 4000
	if len(output) > shown {
		output = "…" + output[len(output)-shown:]
	}
	return fmt.Errorf("%v\n%s", v, strings.TrimSpace(output))
}
