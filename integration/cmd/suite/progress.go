//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// quietTime is the maximum time without output.
const quietTime = 20 * time.Second

// progress prints the progress of the run.
type progress struct {
	out    io.Writer
	ledger *ledger
	begun  time.Time
	last   time.Time // time of the last line
}

// note prints a change. The caller serialises calls.
func (s *progress) note(c change) {
	switch {
	case c.test != nil && !c.test.broken:
		s.line("FAIL   %7s  %s %s", brief(c.test.took), c.pkg.name, c.test.name)
	case c.test == nil && c.pkg != nil && (c.pkg.tests || c.pkg.bad()):
		word := "ok"
		if c.pkg.bad() {
			word = "FAILED"
		}
		s.line("%-6s %7s  %s", word, brief(c.pkg.took), c.pkg.name)
	}
	s.tick()
}

// tick prints the running tests after a quiet time.
func (s *progress) tick() {
	if time.Since(s.last) >= quietTime {
		s.line("%s", s.running())
	}
}

func (s *progress) running() string {
	var names []string
	for _, p := range s.ledger.packages {
		if p.state == running {
			names = append(names, p.name+p.deepest())
		}
	}
	if len(names) == 0 {
		return "...             compiling"
	}
	return "...             running " + strings.Join(names, ", ")
}

// deepest returns the running subtest that began last.
func (p *packageResult) deepest() string {
	var latest *tested
	for _, t := range p.results {
		if t.state == running && (latest == nil || t.begun.After(latest.begun)) {
			latest = t
		}
	}
	if latest == nil {
		return ""
	}
	return fmt.Sprintf(" (%s %s)", latest.name, brief(time.Since(latest.begun)))
}

func (s *progress) line(format string, args ...any) {
	s.last = time.Now()
	done, all := 0, 0
	for _, p := range s.ledger.packages {
		if p.tests {
			all++
		}
		if p.tests && p.state > running {
			done++
		}
	}
	fmt.Fprintf(s.out, "%6s [%d/%d] %s\n", brief(time.Since(s.begun)), done, all, fmt.Sprintf(format, args...))
}

// brief formats a duration.
func brief(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

// longest sorts the packages by time, longest first.
func longest(packages []*packageResult) []*packageResult {
	return slices.SortedFunc(slices.Values(packages), func(a, b *packageResult) int { return int(b.took - a.took) })
}
