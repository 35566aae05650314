//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	maxLines    = 120 // of the output of one test
	maxPackages = 15  // in the table of seconds
	maxNames    = 4   // of tests that were skipped for one reason
)

// report is the summary of a run.
type report struct {
	ledger      *ledger
	options     *options
	took        time.Duration
	interrupted bool
	servers     bool // the servers tool is our parent
}

func (r *report) print(w io.Writer) {
	r.printSkips(w)
	r.printTimes(w)
	r.printFlakes(w)
	r.printFailures(w)
	var bad []string
	tested, silent := 0, 0
	for _, p := range r.ledger.packages {
		switch {
		case r.interrupted && p.state == unfinished:
			silent++
		case p.bad():
			bad = append(bad, p.name)
		}
		if p.tests || p.bad() {
			tested++
		}
	}
	fmt.Fprintln(w)
	if r.interrupted {
		fmt.Fprintf(w, "Interrupted: %d packages have not ended.\n", silent)
	}
	if len(bad) > 0 {
		fmt.Fprintf(w, "%d of %d packages failed in %s: %s\n", len(bad), tested, brief(r.took), strings.Join(bad, " "))
	} else if !r.interrupted {
		fmt.Fprintf(w, "%d packages passed in %s.\n", tested, brief(r.took))
	}
	if len(r.ledger.flakes) > 0 {
		fmt.Fprintln(w, r.ledger.flakyNames())
	}
	fmt.Fprintln(w, r.ledger.count())
}

func (r *report) printFailures(w io.Writer) {
	titled := false
	title := func() {
		if !titled {
			fmt.Fprintf(w, "\n== Failed\n")
		}
		titled = true
	}
	for _, text := range r.ledger.troubles {
		title()
		fmt.Fprintf(w, "\nThe go command failed:\n%s", indented(append([]string{text}, r.ledger.stray...)))
	}
	for _, p := range r.ledger.packages {
		if !p.bad() || p.state == unfinished && r.interrupted && len(p.failures()) == 0 {
			continue
		}
		title()
		r.printPackage(w, p)
	}
}

// failures returns the failed tests.
func (p *packageResult) failures() []*tested {
	return slices.DeleteFunc(p.culprits(), func(t *tested) bool { return t.state != failed })
}

func (r *report) printPackage(w io.Writer, p *packageResult) {
	culprits := p.culprits()
	if r.interrupted {
		culprits = p.failures()
	}
	for _, t := range culprits {
		how := "failed after " + brief(t.took)
		if t.state == unfinished {
			how = "was running when its program ended"
		}
		fmt.Fprintf(w, "\n%s: %s %s\n%s", p.name, t.name, how, indented(t.output))
		fmt.Fprintf(w, "  run just this again:\n    %s\n", r.again(p, t.name))
	}
	switch {
	case p.build != "":
		fmt.Fprintf(w, "\n%s does not compile\n%s", p.name, indented(r.ledger.builds[p.build]))
		fmt.Fprintf(w, "  run just this again:\n    %s\n", r.again(p, ""))
	case len(culprits) == 0 || slices.ContainsFunc(culprits, func(t *tested) bool { return t.state == unfinished }):
		fmt.Fprintf(w, "\n%s: outside its tests\n%s", p.name, indented(p.output))
		fmt.Fprintf(w, "  run just this again:\n    %s\n", r.again(p, ""))
	}
}

// again returns the command that repeats a test, or all tests of a package.
func (r *report) again(p *packageResult, test string) string {
	var words []string
	if r.servers && !p.batch.apart {
		words = append(words, "go run ./integration/cmd/servers --")
	}
	words = append(words, "go test")
	if r.options.race(p.batch) {
		words = append(words, "-race")
	}
	if r.options.check {
		words = append(words, "-short")
	}
	words = append(words, "-count=1")
	if test != "" {
		words = append(words, "-run "+quoted(pattern(test)))
	}
	if !p.batch.apart {
		return strings.Join(append(words, "./"+p.name), " ")
	}
	return fmt.Sprintf("(cd %s && GOWORK=off %s .)", p.name, strings.Join(words, " "))
}

// pattern returns a pattern that matches only this test.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// quoted quotes a word for a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func indented(output []string) string {
	lines := strings.Split(strings.TrimRight(strings.Join(output, ""), "\n"), "\n")
	if left := len(lines) - maxLines; left > 0 {
		middle := fmt.Sprintf("... %d lines ...", left)
		lines = slices.Concat(lines[:maxLines/2], []string{middle}, lines[len(lines)-maxLines/2:])
	}
	var b strings.Builder
	for _, line := range lines {
		if line != "" {
			b.WriteString("    " + line + "\n")
		}
	}
	return b.String()
}

// printSkips groups skipped tests by reason.
func (r *report) printSkips(w io.Writer) {
	why := map[string][]string{}
	for _, p := range r.ledger.packages {
		for _, t := range p.sorted() {
			if t.state == skipped {
				reason := t.reason()
				why[reason] = append(why[reason], p.name+" "+t.name)
			}
		}
	}
	if len(why) == 0 {
		return
	}
	fmt.Fprintf(w, "\n== Skipped, and why\n")
	for _, reason := range slices.SortedFunc(maps.Keys(why), func(a, b string) int {
		return cmp.Or(len(why[b])-len(why[a]), strings.Compare(a, b))
	}) {
		names := why[reason]
		some := strings.Join(names[:min(len(names), maxNames)], ", ")
		if more := len(names) - maxNames; more > 0 {
			some += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(w, "%5d  %s: %s\n", len(names), reason, some)
	}
}

// position matches the source position before a message.
var position = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

func (t *tested) reason() string {
	if len(t.output) == 0 {
		return "no reason given"
	}
	last := t.output[len(t.output)-1]
	for i := range t.output { // a message of several lines begins with a position
		if position.MatchString(t.output[i]) {
			last = t.output[i]
		}
	}
	return strings.TrimSpace(position.ReplaceAllString(last, ""))
}

func (r *report) printTimes(w io.Writer) {
	fmt.Fprintf(w, "\n== Seconds (cpu: of the tests and what they start; servers that all share are not counted)\n")
	fmt.Fprintf(w, "%8s %8s\n", "time", "cpu")
	var rest, all packageResult
	others := 0
	for i, p := range longest(r.ledger.packages) {
		all.add(p)
		if i < maxPackages {
			fmt.Fprintf(w, "%8.1f %8.1f  %s\n", p.took.Seconds(), p.cpu().Seconds(), p.name)
			continue
		}
		others++
		rest.add(p)
	}
	if others > 0 {
		fmt.Fprintf(w, "%8.1f %8.1f  %d others\n", rest.took.Seconds(), rest.cpu().Seconds(), others)
	}
	fmt.Fprintf(w, "%8.1f %8.1f  together, side by side in %.1f\n", all.took.Seconds(), all.cpu().Seconds(), r.took.Seconds())
}

func (p *packageResult) cpu() time.Duration { return p.usage.User + p.usage.System }

func (p *packageResult) add(q *packageResult) {
	p.took += q.took
	p.usage.User += q.usage.User
	p.usage.System += q.usage.System
}
