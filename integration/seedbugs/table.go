package seedbugs

import (
	"fmt"
	"strings"
)

// List returns a line for each bug: its name, its effect, its file and the test
// that must detect it.
func List(bugs []Bug) string {
	var b strings.Builder
	for _, bug := range bugs {
		fmt.Fprintf(&b, "%s: %s (%s, noticed by %s)\n", bug.Name, bug.Why, bug.File, bug.Test)
	}
	return b.String()
}

// Line formats r as a line of a table for the terminal.
func (r Result) Line(width int) string {
	if r.Err != nil {
		return fmt.Sprintf("%-*s  NOT NOTICED: %v", width, r.Bug.Name, r.Err)
	}
	return fmt.Sprintf("%-*s  %5.1f s  %s%s", width, r.Bug.Name, r.Seconds, r.Bug.Test, map[bool]string{true: " (at its deadline)"}[r.Verdict == Late])
}
