//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// state is the progress of a package or a test.
type state int

const (
	waiting state = iota
	running
	passed
	skipped
	failed
	unfinished // its program ended first
)

// tested is the state of a test.
type tested struct {
	name   string
	state  state
	begun  time.Time
	took   time.Duration
	output []string
	parent *tested
	broken bool // a subtest failed
	nested bool // it has subtests
}

// packageResult is the state of a package.
type packageResult struct {
	pkg
	batch   *batch
	state   state
	begun   time.Time
	took    time.Duration
	usage   usage
	output  []string // outside any test
	results map[string]*tested
	build   string // ID of the failed build
}

// ledger collects all events.
type ledger struct {
	interrupted bool
	packages    []*packageResult
	byPath      map[string]*packageResult
	builds      map[string][]string // output by ID
	troubles    []string
	stray       []string // output that belongs to no package
	flakes      []flake
}

func newLedger(batches []*batch) *ledger {
	l := &ledger{byPath: map[string]*packageResult{}, builds: map[string][]string{}}
	for _, b := range batches {
		for _, p := range b.packages {
			r := &packageResult{pkg: p, batch: b, results: map[string]*tested{}}
			l.packages = append(l.packages, r)
			l.byPath[p.path] = r
		}
	}
	return l
}

// change is worth a line of progress: a package has ended, or a test has
// failed.
type change struct {
	pkg  *packageResult
	test *tested
}

// add takes an event and returns the change worth reporting.
func (l *ledger) add(e event) change {
	switch {
	case e.Action == trouble:
		l.troubles = append(l.troubles, e.Output)
		return change{}
	case e.ImportPath != "":
		l.builds[e.ImportPath] = append(l.builds[e.ImportPath], e.Output)
		return change{}
	}
	p := l.byPath[e.Package]
	if p == nil {
		if e.Action == "output" {
			l.stray = append(l.stray, e.Output)
		}
		return change{}
	}
	if e.Test == "" {
		return p.note(e)
	}
	return p.noteTest(e)
}

func (p *packageResult) note(e event) change {
	switch e.Action {
	case "start":
		p.state, p.begun = running, time.Now()
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "skip", "fail":
		p.state, p.took, p.build = ended(e.Action), seconds(e.Elapsed), e.FailedBuild
		for _, t := range p.results {
			t.close()
		}
		return change{pkg: p}
	}
	return change{}
}

func (p *packageResult) noteTest(e event) change {
	t := p.test(e.Test)
	switch e.Action {
	case "run":
		t.state, t.begun = running, time.Now()
	case "output":
		if !isFrame(e.Output) {
			t.output = append(t.output, e.Output)
		}
	case "pass", "skip", "fail":
		t.state, t.took = ended(e.Action), seconds(e.Elapsed)
		if t.state == passed {
			t.output = nil
		}
		if t.state == failed {
			for up := t.parent; up != nil; up = up.parent {
				up.broken = true
			}
			return change{pkg: p, test: t}
		}
	}
	return change{}
}

func (p *packageResult) test(name string) *tested {
	t := p.results[name]
	if t == nil {
		t = &tested{name: name}
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			t.parent = p.test(name[:i])
			t.parent.nested = true
		}
		p.results[name] = t
	}
	return t
}

// close ends a test whose program has ended. The parent of a test with a slash
// in its name is the part before it.
func (t *tested) close() {
	if t.state == running {
		t.state = unfinished
	}
}

func ended(action string) state {
	return map[string]state{"pass": passed, "skip": skipped, "fail": failed}[action]
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// isFrame reports whether the line only says that a test begins, pauses or
// ends.
func isFrame(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ")
}

// close ends a run. Whatever has no result has failed, unless the run was
// interrupted.
func (l *ledger) close(interrupted bool) {
	l.interrupted = interrupted
	for _, p := range l.packages {
		if interrupted && p.state == failed && len(p.failures()) == 0 && p.build == "" {
			p.state = unfinished // because we ended it
		}
		if p.state == waiting || p.state == running {
			p.state = unfinished
			if !interrupted {
				p.output = append(p.output, "no result of this package was reported\n")
			}
		}
		for _, t := range p.results {
			t.close()
		}
	}
}

func (l *ledger) takeUsage(all []usage, err error) error {
	byDir := map[string]usage{}
	for _, u := range all { // several of one package that was run again
		sum := byDir[u.Dir]
		byDir[u.Dir] = usage{u.Dir, sum.Wall + u.Wall, sum.User + u.User, sum.System + u.System}
	}
	for _, p := range l.packages {
		p.usage = byDir[p.dir]
	}
	return err
}

func (l *ledger) failed() bool {
	return len(l.troubles) > 0 || slices.ContainsFunc(l.packages, (*packageResult).bad)
}

func (p *packageResult) bad() bool { return p.state == failed || p.state == unfinished }

// sorted returns the tests by name.
func (p *packageResult) sorted() []*tested {
	return slices.SortedFunc(maps.Values(p.results), func(a, b *tested) int { return cmp.Compare(a.name, b.name) })
}

// culprits returns the tests that failed by themselves, not only through a
// subtest.
func (p *packageResult) culprits() (all []*tested) {
	for _, t := range p.sorted() {
		switch {
		case t.state == failed && (!t.broken || len(t.output) > 0):
			all = append(all, t)
		case t.state == unfinished && p.bad() && !p.runsBelow(t):
			all = append(all, t)
		}
	}
	return all
}

// runsBelow reports whether a subtest was running when the program of a test
// ended.
func (p *packageResult) runsBelow(t *tested) bool {
	for _, other := range p.results {
		if other.parent == t && other.state == unfinished {
			return true
		}
	}
	return false
}

// count counts tests without subtests. It also counts tests that fail although
// their subtests pass, and packages that fail although their tests pass.
type count struct{ passed, failed, skipped int }

func (c count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

func (l *ledger) count() (c count) {
	c.failed = len(l.troubles)
	for _, p := range l.packages {
		before := c.failed
		for _, t := range p.results {
			switch {
			case t.state == failed && !t.broken, t.state == unfinished && !l.interrupted && !p.runsBelow(t):
				c.failed++
			case t.nested && t.state != skipped:
			case t.state == passed:
				c.passed++
			case t.state == skipped:
				c.skipped++
			}
		}
		if p.state == failed && c.failed == before || p.state == unfinished && !l.interrupted {
			c.failed++
		}
	}
	return c
}
