package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/internal/legible"
)

const (
	maxComparisons = 20      // that are remembered
	maxComparing   = 2       // at once: each has its report in memory
	maxKept        = 50_000  // findings of all comparisons together
	maxCompared    = 1000    // findings of a kind that are kept to be looked at
	maxDecidable   = 10_000  // findings of a kind that are kept to be settled
	maxLines       = 4 << 20 // bytes of lines that are kept as outcomes, of a comparison
	maxQuoted      = 100     // bytes of what a report says, in a list
	manyLines      = 5       // of one key, in a list
)

// comparison compares a report with the keys of an operation, or is the result of
// that.
type comparison struct {
	Number int
	By     string
	Begun  time.Time
	Form   url.Values // as it was filled in, to be filled in again
	asked

	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	state   jobState
	read    int // keys of the report that were compared
	report  crosscheck.Report
	summary crosscheck.Summary
	found   [][]finding // by kind
	kept    int         // findings
	bytes   int         // of the lines in them
	ended   time.Time
	stopped string // by whom
	trouble string // why it failed
	refusal string // why keys that the report lacks must not be released
}

// asked is what a person wants to be compared.
type asked struct {
	Label  string // of the report, for people
	Store  Store
	of     once.Key
	format crosscheck.Format
	with   crosscheck.Comparison // without its Store and Report
	margin bool                  // it was given
	open   func() (io.ReadSeekCloser, error)
}

// finding is a finding as it is kept. What the report says in it is cut.
type finding struct {
	crosscheck.Finding
	More int // lines besides those in Lines
}

// comparisons are those at work and the latest results. They are lost with the
// process.
type comparisons struct {
	mu      sync.Mutex
	all     []*comparison // the oldest first
	last    int           // the number of the latest
	places  int           // that are taken
	closed  bool
	running sync.WaitGroup
}

// enter takes a place for a report. leave gives it back.
func (c *comparisons) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.places == maxComparing {
		return false
	}
	c.places++
	return true
}

func (c *comparisons) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places--
}

// begin remembers a comparison, whose place was taken before.
func (c *comparisons) begin(a asked, by string, form url.Values, now time.Time) (x *comparison, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.last++
	x = &comparison{Number: c.last, By: by, Begun: now, Form: form, asked: a, state: jobRunning, found: make([][]finding, len(crosscheck.Kinds()))}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	c.all = append(c.all, x)
	c.shrink(x)
	c.running.Add(1)
	return x, true
}

// shrink forgets the oldest results, until what is kept fits. It never forgets but.
func (c *comparisons) shrink(but *comparison) {
	kept := 0
	for _, x := range c.all {
		kept += x.size()
	}
	for i := 0; i < len(c.all) && (len(c.all) > maxComparisons || kept > maxKept); {
		x := c.all[i]
		if x == but || x.isWorking() {
			i++
			continue
		}
		kept -= x.size()
		c.all = slices.Delete(c.all, i, i+1)
	}
}

// latest returns the comparisons, the latest first.
func (c *comparisons) latest() []*comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.all)
	slices.Reverse(all)
	return all
}

func (c *comparisons) numbered(n int) *comparison {
	for _, x := range c.latest() {
		if x.Number == n {
			return x
		}
	}
	return nil
}

// close stops all comparisons, and begins no more.
func (c *comparisons) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for _, x := range c.latest() {
		x.end("the end of this console")
	}
}

func (x *comparison) size() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.kept
}

func (x *comparison) isWorking() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ended.IsZero()
}

// end stops a comparison. It reports whether that was news.
func (x *comparison) end(by string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state != jobRunning {
		return false
	}
	x.state, x.stopped = jobStopping, by
	x.cancel()
	return true
}

// add keeps a finding, if there is room for one more of its kind.
func (x *comparison) add(f crosscheck.Finding) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended.IsZero() {
		return errGivenUp
	}
	limit := maxCompared
	if f.Supports != crosscheck.None {
		limit = maxDecidable
	}
	if len(x.found[f.Kind]) >= limit {
		return nil
	}
	k := finding{Finding: f}
	if k.More = max(len(f.Lines)-manyLines, 0); k.More > 0 {
		k.Lines = slices.Clone(f.Lines[:manyLines])
	}
	k.Record.Outcome.Body = nil
	if x.bytes += len(f.Line); f.Supports != crosscheck.MarkDone || x.bytes > maxLines {
		x.bytes -= len(f.Line)
		k.Line = nil
	}
	k.Key.ID = strings.Clone(k.Key.ID) // which may be a part of a long line
	if k.Record.Key.ID != "" {
		k.Record.Key = k.Key
	}
	for _, text := range []*string{&k.Status, &k.Theirs, &k.Ours, &k.Why, &k.Travel} {
		*text = cut(*text)
	}
	x.found[f.Kind] = append(x.found[f.Kind], k)
	x.kept++
	return nil
}

// cut returns a copy of the beginning of a text, so that the rest can be forgotten.
func cut(text string) string {
	if len(text) <= maxQuoted {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:maxQuoted], "") + "…"
}

// compare carries out a comparison.
func (c *Console) compare(x *comparison) {
	defer c.comparisons.running.Done()
	defer x.cancel()
	late, cancel := patient(x.ctx)
	defer cancel()
	open := x.open
	_, err := contained(late, c, x.Store.Name, func() (struct{}, error) {
		defer c.comparisons.leave() // until then, the report is in memory
		return struct{}{}, c.run(x, open)
	})
	x.mu.Lock()
	x.ended, x.open = c.now(), nil // the report goes
	switch {
	case err == nil:
		x.state = jobFinished
	case x.state == jobStopping && !errors.Is(err, errGivenUp):
		x.state = jobStopped
	default:
		x.state, x.trouble = jobFailed, err.Error()
	}
	state, trouble, by := x.state, x.trouble, x.By
	attrs := []any{"comparison", x.Number, "by", by, "store", x.Store.Name, "operation", x.of.Operation, "report", x.Label, "state", string(state)}
	for _, kind := range crosscheck.Kinds() {
		if n := x.summary.Counts[kind]; n > 0 {
			attrs = append(attrs, kind.String(), n)
		}
	}
	x.mu.Unlock()
	if trouble != "" {
		c.log.Warn("console: a comparison failed", append(attrs, "error", trouble)...)
	} else {
		c.log.Info("console: a comparison ended", attrs...)
	}
	c.comparisons.mu.Lock()
	defer c.comparisons.mu.Unlock()
	c.comparisons.shrink(x)
}

// run compares. Once the comparison is given up, it changes nothing of it.
func (c *Console) run(x *comparison, open func() (io.ReadSeekCloser, error)) error {
	file, err := open()
	if err != nil {
		return err
	}
	defer file.Close()
	report, err := crosscheck.Read(x.ctx, file, x.format, x.of)
	if err != nil {
		return err
	}
	x.note(func() {
		x.report = crosscheck.Report{Column: report.Column, Lines: report.Lines, Skipped: report.Skipped}
	})
	with := x.with
	with.Store, with.Report = x.Store.Store, report
	with.Progress = func(n int) { x.note(func() { x.read = n }) }
	summary, err := with.Run(x.ctx, x.add)
	x.note(func() {
		x.summary = summary
		if may := with.MayFree(summary); may != nil {
			x.refusal = may.Error()
		}
		switch {
		case x.refusal != "":
		case !x.margin:
			x.refusal = "the margin is not given: how long after its end an attempt can still arrive there"
		case x.format.ID == "" && x.format.Key == "":
			x.refusal = "the column with the IDs is not named: by another column, all keys are missing"
		}
	})
	return err
}

// note changes a comparison, unless it has ended.
func (x *comparison) note(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended.IsZero() {
		change()
	}
}

// memory is a report that was uploaded.
type memory struct{ *strings.Reader }

func (memory) Close() error { return nil }

// openFile opens a report that Options names.
func openFile(name string) (io.ReadSeekCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	is, err := f.Stat()
	if err == nil && !is.Mode().IsRegular() {
		err = errors.New("the report is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// compared is a comparison as a page shows it.
type compared struct {
	*comparison
	State            jobState
	Working          bool
	Read, Of         int
	Report           crosscheck.Report
	Summary          crosscheck.Summary
	Ended            time.Time
	Took             string
	Stopped, Trouble string
	Refusal          string
	Differ           int // findings that somebody has to look at
	CanComplete      int // unknown and parked keys that a job can settle
	CanRelease       int
	URL, Again       string
	Title            string
	Every            int // milliseconds
}

func (v *view) comparedOf(x *comparison) compared {
	x.mu.Lock()
	defer x.mu.Unlock()
	number := fmt.Sprint(x.Number)
	p := compared{comparison: x, State: x.state, Working: x.ended.IsZero(), Read: x.read, Of: x.report.Lines, Report: x.report, Summary: x.summary,
		Ended: x.ended, Stopped: x.stopped, Trouble: legible.Lines(x.trouble), Refusal: x.refusal, URL: v.link("/reconcile/result", "number", number),
		Again: v.link("/reconcile", "like", number), Every: 1000, Title: fmt.Sprintf("Comparison %d", x.Number)}
	p.Took = legible.Span(cmp.Or(x.ended, v.now()).Sub(x.Begun))
	for _, kind := range crosscheck.Kinds() {
		if kind.Disagrees() {
			p.Differ += x.summary.Counts[kind]
		}
	}
	for _, f := range x.found[crosscheck.OpenHere] {
		if f.Supports == crosscheck.MarkDone {
			p.CanComplete++
		}
	}
	for _, f := range x.found[crosscheck.OpenNotThere] {
		if f.Supports == crosscheck.MarkNotDone {
			p.CanRelease++
		}
	}
	return p
}

// Operation is the operation of the keys.
func (x *comparison) Operation() string { return x.of.Operation }

// Scope is the scope of the keys.
func (x *comparison) Scope() string { return x.of.Scope }

// AllScopes reports whether keys of all scopes were compared.
func (x *comparison) AllScopes() bool { return x.with.AnyScope }

// Period says which time the report covers, or nothing if that was not said.
func (x *comparison) Period() string {
	if x.with.Since.IsZero() && x.with.Until.IsZero() {
		return ""
	}
	since, until := "the beginning", "now"
	if !x.with.Since.IsZero() {
		since = exactTime(x.with.Since)
	}
	if !x.with.Until.IsZero() {
		until = exactTime(x.with.Until)
	}
	return since + " to " + until
}
