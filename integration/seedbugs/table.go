package seedbugs

import (
	"fmt"
	"strings"
)

// Markdown is the table of bugs for the documentation.
func Markdown(bugs []Bug) string {
	var b strings.Builder
	b.WriteString("| bug | what it would do | in | noticed by |\n|---|---|---|---|\n")
	for _, bug := range bugs {
		fmt.Fprintf(&b, "| %s | %s | `%s` | `%s` `%s` |\n", bug.Name, bug.Why, bug.File, bug.Test.Package,
			strings.ReplaceAll(bug.Test.Run, "|", `\|`))
	}
	return b.String()
}

// Line is a result as a line of a table for the terminal.
func (r Result) Line(width int) string {
	if r.Err != nil {
		return fmt.Sprintf("%-*s  NOT NOTICED: %v", width, r.Bug.Name, r.Err)
	}
	return fmt.Sprintf("%-*s  %5.1f s  %s%s", width, r.Bug.Name, r.Seconds, r.Bug.Test, map[bool]string{true: " (at its deadline)"}[r.Verdict == Late])
}
