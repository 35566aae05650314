//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// maxAgain is how many failures may be bad luck. If there are more, the code is
// broken, and to repeat them would only take time.
const maxAgain = 20

// againTime ends the repeating. What was not repeated by then stays a failure.
const againTime = 20 * time.Minute

// suspect is a failure that may be bad luck: of a test, or of a whole package.
// A package is repeated whole if its program did not come to its end, because
// tests that it would have run afterwards have no result.
type suspect struct {
	pkg  *packageResult
	test *tested // nil: the whole package
}

func (s suspect) String() string {
	if s.test == nil {
		return s.pkg.name
	}
	return s.pkg.name + " " + s.test.name
}

// flake is a failure that was not repeated.
type flake struct {
	suspect
	output []string // of the failure
}

// suspects returns the failures that may be bad luck. A package that does not
// compile is none.
func (l *ledger) suspects() (all []suspect) {
	for _, p := range l.packages {
		if p.bad() && p.build == "" {
			all = append(all, p.suspects()...)
		}
	}
	return all
}

func (p *packageResult) suspects() (all []suspect) {
	culprits := p.culprits()
	if len(culprits) == 0 || !p.ended() {
		return []suspect{{pkg: p}}
	}
	for _, t := range culprits {
		if !slices.ContainsFunc(culprits, t.isBelow) { // the other one runs this one, too
			all = append(all, suspect{p, t})
		}
	}
	return all
}

// ended reports whether the program of a package has run all its tests.
func (p *packageResult) ended() bool {
	return slices.Contains(p.output, "FAIL\n") || slices.Contains(p.output, "PASS\n")
}

// isBelow reports whether t is a subtest of another test, at any depth.
func (t *tested) isBelow(other *tested) bool {
	return strings.HasPrefix(t.name, other.name+"/")
}

// runAgain repeats each failure alone, up to o.flaky times, until it passes. What
// passes is no failure any more, but a flake.
func (o *options) runAgain(ctx context.Context, l *ledger, at *room, say func(format string, args ...any)) {
	all := l.suspects()
	if o.flaky == 0 || len(all) == 0 {
		return
	}
	if len(all) > maxAgain {
		say("none of the %d failures is repeated: more than %d are no bad luck", len(all), maxAgain)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	for _, s := range all {
		for try := 1; try <= o.flaky && ctx.Err() == nil; try++ {
			again := s.run(ctx, o, at)
			if again == nil {
				say("again           %s: failed alone, too (%d of %d)", s, try, o.flaky)
				continue
			}
			say("again  %7s  %s: passed alone, so it is flaky", brief(again.took), s)
			l.flakes = append(l.flakes, s.forgive(again))
			break
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		say("after %v, no more failures are repeated", againTime)
	}
}

// run repeats a suspect, and returns the result if it passed. If only tests above
// it fail, which may count what all their subtests have done, the one that has the
// others below it is repeated whole: it may have ended early the first time.
func (s suspect) run(ctx context.Context, o *options, at *room) *packageResult {
	alone, b := *o, &batch{dir: s.pkg.batch.dir, apart: s.pkg.batch.apart, packages: []pkg{s.pkg.pkg}}
	if s.test != nil {
		alone.run = pattern(s.test.name)
	}
	l := newLedger([]*batch{b})
	runAll(ctx, &alone, []*batch{b}, at, func(e event) { l.add(e) }, func() {})
	l.close(ctx.Err() != nil)
	again := l.packages[0]
	switch {
	case s.test == nil && !l.failed():
		return again
	case s.test == nil || !again.passed(s.test):
		return nil
	case !l.failed():
		return again
	}
	if above := again.culprits(); len(above) > 0 && s.test.isBelow(above[0]) { // they are in the order of their names
		return suspect{s.pkg, above[0]}.run(ctx, o, at)
	}
	return nil
}

func (p *packageResult) passed(t *tested) bool {
	return p.results[t.name] != nil && p.results[t.name].state == passed
}

// forgive replaces the failure of a suspect by a later result.
func (s suspect) forgive(again *packageResult) flake {
	p := s.pkg
	if s.test == nil {
		f := flake{s, p.output}
		for _, t := range p.culprits() {
			f.output = append(append(f.output, t.name+":\n"), t.output...)
		}
		again.batch, again.usage = p.batch, p.usage
		*p = *again
		return f
	}
	var output []string
	for _, t := range p.sorted() {
		if t != s.test && !t.isBelow(s.test) {
			continue
		}
		if t.state == failed {
			output = append(output, t.output...)
			t.state, t.output, t.broken = passed, nil, false
		}
	}
	if len(p.culprits()) == 0 {
		p.state = passed
		for _, t := range p.results { // the tests that failed through a subtest
			if t.state == failed {
				t.state, t.broken = passed, false
			}
		}
	}
	return flake{s, output}
}

// printFlakes prints what failed and then passed alone.
func (r *report) printFlakes(w io.Writer) {
	if len(r.ledger.flakes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n== Flaky: failed, and passed when run again alone. Mend these first\n")
	for _, f := range r.ledger.flakes {
		name := ""
		if f.test != nil {
			name = f.test.name
		}
		fmt.Fprintf(w, "\n%s\n%s  run just this again:\n    %s\n", f.suspect, indented(f.output), r.again(f.pkg, name))
	}
}

// flakyNames lists the flakes in one line.
func (l *ledger) flakyNames() string {
	var names []string
	for _, f := range l.flakes {
		names = append(names, f.String())
	}
	return fmt.Sprintf("%d flaky: %s", len(names), strings.Join(names, ", "))
}
