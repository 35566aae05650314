package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/crosscheck"
)

// reportFlags say how to read a report.
type reportFlags struct {
	Against string `required:"" placeholder:"FILE" help:"Report of the other system, CSV or JSON Lines; - for standard input."`

	Format         string   `enum:"auto,csv,jsonl" default:"auto" help:"auto, csv or jsonl (JSON Lines)."`
	Delimiter      string   `default:"," placeholder:"CHAR" help:"Delimiter of CSV, or tab (default a comma)."`
	IDColumn       chosen   `xor:"column" placeholder:"COLUMN" help:"Column with the IDs of keys. Default: id, key, idempotency_key or reference."`
	KeyColumn      chosen   `xor:"column" placeholder:"COLUMN" help:"Column with keys as they travel, see once keys get."`
	SkipEmpty      bool     `help:"Skip lines without an ID, such as fees."`
	StatusColumn   chosen   `placeholder:"COLUMN" help:"Column that says whether it happened. Default: every line happened."`
	Happened       []string `placeholder:"VALUE" help:"Values of --status-column that mean that it happened."`
	AmountColumn   chosen   `placeholder:"COLUMN" help:"Column with the amount. Requires --amount."`
	CurrencyColumn chosen   `placeholder:"COLUMN" help:"Column with the currency. Requires --currency."`
	DecimalComma   bool     `help:"The amounts of the report have a decimal comma."`
}

func (f *reportFlags) validate() error {
	switch {
	case (f.StatusColumn == "") != (len(f.Happened) == 0):
		return errors.New("--status-column and --happened require each other")
	case f.Delimiter != "tab" && utf8.RuneCountInString(f.Delimiter) != 1:
		return fmt.Errorf("--delimiter is %q: use one character, or tab", f.Delimiter)
	}
	return nil
}

func (f *reportFlags) format() crosscheck.Format {
	delimiter, _ := utf8.DecodeRuneInString(f.Delimiter)
	if f.Delimiter == "tab" {
		delimiter = '\t'
	}
	return crosscheck.Format{Syntax: map[string]crosscheck.Syntax{"csv": crosscheck.CSV, "jsonl": crosscheck.JSONLines}[f.Format],
		Delimiter: delimiter, ID: string(f.IDColumn), Key: string(f.KeyColumn), SkipEmpty: f.SkipEmpty, Status: string(f.StatusColumn),
		Happened: f.Happened, Amount: string(f.AmountColumn), DecimalComma: f.DecimalComma, Currency: string(f.CurrencyColumn)}
}

// open opens the report. One that cannot be read twice is copied to a temporary
// file, which close removes.
func (f *reportFlags) open(ctx context.Context) (report io.ReadSeeker, close func(), err error) {
	from := os.Stdin
	if f.Against != "-" {
		if from, err = os.Open(f.Against); err != nil {
			return nil, nil, usage("%v", err)
		}
		is, err := from.Stat()
		switch {
		case err != nil:
			from.Close()
			return nil, nil, err
		case is.IsDir():
			from.Close()
			return nil, nil, usage("%s is a directory: name the report", f.Against)
		case is.Mode().IsRegular():
			return from, func() { from.Close() }, nil
		}
		defer from.Close()
	}
	copied, err := os.CreateTemp("", "once-report-*")
	if err != nil {
		return nil, nil, err
	}
	close = func() {
		copied.Close()
		os.Remove(copied.Name())
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(copied, from)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		_, err = copied.Seek(0, io.SeekStart)
	}
	if err != nil {
		close()
		return nil, nil, err
	}
	return copied, close, nil
}

type reconcileCommand struct {
	storeFlags
	outputFlags
	reportFlags

	Operation chosen  `required:"" complete:"operation" placeholder:"NAME" help:"Operation of the keys."`
	Scope     *string `placeholder:"TEXT" help:"Scope of the keys. Default: the empty scope; all scopes with --key-column."`
	Amount    chosen  `placeholder:"POINTER" help:"Amount in the outcome to compare with --amount-column, such as /amount."`
	Decimals  int     `placeholder:"N" help:"The outcome has the amount in units of 10^-N: 2 for cents."`
	Currency  chosen  `placeholder:"POINTER" help:"Currency in the outcome to compare with --currency-column."`
	Since     moment  `placeholder:"WHEN" help:"Beginning of the time that the report covers, such as 2026-11-22T00:00:00Z."`
	Until     moment  `placeholder:"WHEN" help:"End of that time."`
	Margin    *span   `placeholder:"TIME" help:"How far the time of an effect there may be from the time here (default 0s)."`

	Settle        bool   `help:"Complete unknown keys that happened by the report. Requires --outcome and --reason."`
	SettleMissing bool   `name:"settle-missing-as-not-happened" help:"Free unknown keys that the report lacks. Requires --since, --until, --margin, --reason, and --id-column or --key-column."`
	Parked        bool   `help:"Settle parked keys too."`
	Outcome       string `enum:",line,none" default:"" placeholder:"WHAT" help:"What duplicates of completed keys get: the line as JSON (line), or no outcome (none)."`
	Reason        string `placeholder:"TEXT" help:"Why the report can be trusted. It is stored with each change."`
	By            string `placeholder:"NAME" help:"Name for the audit line. Default: $$ONCE_BY, then your user name."`
	Yes           bool   `short:"y" help:"Skip confirmation."`
	maxFlags
}

func (c *reconcileCommand) change() *changeFlags { return &changeFlags{c.Reason, c.By, c.Yes} }

func (c *reconcileCommand) settles() bool { return c.Settle || c.SettleMissing }

// Validate is called by kong.
func (c *reconcileCommand) Validate() error {
	since, until := time.Time(c.Since), time.Time(c.Until)
	switch {
	case (c.AmountColumn == "") != (c.Amount == ""):
		return errors.New("--amount-column and --amount require each other")
	case (c.CurrencyColumn == "") != (c.Currency == ""):
		return errors.New("--currency-column and --currency require each other")
	case c.Amount != "" && c.Amount[0] != '/':
		return fmt.Errorf("--amount is %q: write a JSON pointer such as /amount", c.Amount)
	case c.Currency != "" && c.Currency[0] != '/':
		return fmt.Errorf("--currency is %q: write a JSON pointer such as /currency", c.Currency)
	case c.Decimals < 0 || c.Decimals > 18 || c.Decimals > 0 && c.Amount == "":
		return fmt.Errorf("--decimals is %d: use 0 to 18, with --amount", c.Decimals)
	case !since.IsZero() && !until.IsZero() && !since.Before(until):
		return errors.New("--until must be after --since")
	case !c.settles() && (c.Parked || c.Outcome != "" || c.Reason != "" || c.By != "" || c.Yes || c.Limit != nil || c.DryRun):
		return errors.New("--parked, --outcome, --reason, --by, --yes, --limit and --dry-run require --settle or --settle-missing-as-not-happened: without them, nothing is changed")
	case c.Settle != (c.Outcome != ""):
		return errors.New("--settle and --outcome require each other. Give --outcome line only if the operation can decode a line of the report as its result; else none, and duplicates get once.ErrOutcomeUnavailable")
	case c.SettleMissing && (since.IsZero() || until.IsZero() || c.Margin == nil):
		return errors.New("--settle-missing-as-not-happened requires --since, --until and --margin: a report that does not cover all of the time says nothing about what it lacks")
	case c.SettleMissing && c.IDColumn == "" && c.KeyColumn == "":
		return errors.New("--settle-missing-as-not-happened requires --id-column or --key-column: by another column all keys are missing")
	}
	if err := cmp.Or(c.validate(), c.check()); err != nil || !c.settles() {
		return err
	}
	return c.change().Validate()
}

// Help is the long text of once reconcile --help.
func (reconcileCommand) Help() string {
	return `
Compares a report of another system, such as the list of charges that a payment provider exports, with the keys of an
operation. docs/operating.md explains what it finds. Without a --settle flag nothing is changed.

A value of --status-column that is not in --happened counts as not happened. It may still be pending, so such a line
settles nothing. A key that the report lacks is reported if --since and --until cover all of its time, with --margin at
both ends. With -o json it prints an object per line: each finding, each decision, and the summary.

The whole report is checked before anything else. It needs about 24 bytes of memory per line.

Examples:
  once reconcile --against charges.csv --operation pay/charge --id-column order
  once reconcile --against charges.csv --operation pay/charge --key-column idempotency_key \
    --status-column status --happened succeeded,captured --amount-column amount --amount /amount --decimals 2 \
    --since 2026-11-22T00:00:00Z --until 2026-11-23T00:00:00Z --margin 1h
  once reconcile --against charges.csv --operation pay/charge --id-column order \
    --settle --outcome none --reason "as the provider's report shows, ticket 88" --dry-run

` + exitHelp
}

// Run compares, prints what it finds, and settles keys.
func (c *reconcileCommand) Run(ctx context.Context) error {
	by := ""
	if c.settles() {
		var err error
		if by, err = c.change().by(); err != nil {
			return err
		}
		if !utf8.ValidString(by + c.Reason) {
			return usage("--reason and --by must be UTF-8")
		}
	}
	of := once.Key{Operation: string(c.Operation)}
	if c.Scope != nil {
		of.Scope = *c.Scope
	}
	if err := (once.Key{Scope: of.Scope, Operation: of.Operation, ID: "any"}).Validate(); err != nil {
		return usage("%v", err)
	}
	file, closeFile, err := c.reportFlags.open(ctx)
	if err != nil {
		return err
	}
	defer closeFile()
	line := newProgress(c.outputFlags)
	defer line.end()
	var report *crosscheck.Report
	err = line.during("Reading the report", func() (err error) {
		report, err = crosscheck.Read(ctx, file, c.format(), of)
		return err
	})
	var unfit *crosscheck.FormatError
	if errors.As(err, &unfit) {
		return usage("%v", err)
	}
	if err != nil {
		return err
	}
	if c.IDColumn == "" && c.KeyColumn == "" {
		note("The column %s was taken for the IDs of keys.", show.Quote(report.Column))
	}
	s, err := c.storeFlags.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if until := time.Time(c.Until); !until.IsZero() {
		now, err := s.Now(ctx)
		if err != nil {
			return err
		}
		if until.After(now) {
			return usage("--until is in the future, which no report covers: give the time at which the report ends")
		}
	}
	return c.reconcile(ctx, s, report, by, line)
}

func (c *reconcileCommand) reconcile(ctx context.Context, s *session, report *crosscheck.Report, by string, line *progress) error {
	with := crosscheck.Comparison{Store: s.Store, Report: report, AnyScope: c.KeyColumn != "" && c.Scope == nil, Since: time.Time(c.Since),
		Until: time.Time(c.Until), Amount: string(c.Amount), Currency: string(c.Currency), Decimals: c.Decimals,
		Progress: func(n int) { line.say("%d of %s compared", n, show.Count(report.Lines, "line", "lines")) }}
	if c.Margin != nil {
		with.Margin = time.Duration(*c.Margin)
	}
	found := &findings{reconcileCommand: c, most: s.Store.Options().MaxOutcome}
	summary, err := with.Run(ctx, found.add)
	line.end()
	if err != nil {
		return err
	}
	found.Summary = summary
	if err := found.print(ctx, report); err != nil {
		return err
	}
	settled := 0
	if c.settles() {
		if err := found.mayFree(&with); err != nil {
			return err
		}
		if settled, err = found.settle(ctx, s, by, line); err != nil {
			return err
		}
	}
	disagree := 0
	for _, kind := range crosscheck.Kinds() {
		if kind.Disagrees() {
			disagree += summary.Counts[kind]
		}
	}
	if disagree > settled {
		return errNo
	}
	return nil
}

const (
	maxExamples = 5      // of a kind
	maxPlanned  = 10_000 // decisions, which are in memory
)

// findings are what a comparison found.
type findings struct {
	*reconcileCommand
	crosscheck.Summary
	most     int // bytes of an outcome
	examples [crosscheck.Agrees][]crosscheck.Finding
	plan     []crosscheck.Planned
	left     int // decisions that did not fit into the plan
}

// add keeps a finding as an example and plans its decision. With JSON it prints
// the finding.
func (f *findings) add(found crosscheck.Finding) error {
	if examples := &f.examples[found.Kind]; len(*examples) < maxExamples {
		kept := found
		kept.Record.Outcome.Body, kept.Line = nil, nil
		*examples = append(*examples, kept)
	}
	if err := f.decide(found); err != nil || !f.json() {
		return err
	}
	return printJSON(disagreementOf(found))
}

func (f *findings) decide(found crosscheck.Finding) error {
	with := crosscheck.Settling{Happened: f.Settle, Missing: f.SettleMissing, Parked: f.Parked, LineAsOutcome: f.Outcome == "line", MaxOutcome: f.most}
	p, ok, err := with.Plan(found)
	if err != nil {
		return usage("%v: use --outcome none. Nothing was changed", strings.TrimPrefix(err.Error(), once.ErrOutcomeTooLarge.Error()+": "))
	}
	if !ok {
		return nil
	}
	limit := maxPlanned
	if f.Limit != nil {
		limit = min(limit, *f.Limit)
	}
	if len(f.plan) == limit {
		f.left++
		return nil
	}
	f.plan = append(f.plan, p)
	return nil
}

// mayFree returns an error if keys are to be freed and the report gives reason to
// doubt that it lacks them.
func (f *findings) mayFree(c *crosscheck.Comparison) error {
	for i := range f.plan {
		if f.plan[i].Outcome != nil {
			continue
		}
		if err := c.MayFree(f.Summary); err != nil {
			note("Nothing was changed, because a key that did happen could be freed: %v. Find out first, or decide key by key with once unknown decide.", err)
			return errNo
		}
		break
	}
	return nil
}

// settle makes the decisions after confirmation. It skips a record that has
// changed since it was read, and returns how many it has settled.
func (f *findings) settle(ctx context.Context, s *session, by string, line *progress) (settled int, err error) {
	if len(f.plan) == 0 {
		note("There is no key to settle by this report.")
		return 0, nil
	}
	if err := f.confirm(ctx, s); err != nil {
		return 0, err
	}
	overtaken, all := 0, show.Count(len(f.plan), "key", "keys")
	defer line.end()
	for i := range f.plan {
		p := &f.plan[i]
		deed, becomes := p.Verb()
		applied := false
		if !f.DryRun {
			err := p.Settle(ctx, s.Store, by, f.Reason)
			switch {
			case errors.Is(err, once.ErrLeaseLost):
				overtaken++
			case err != nil:
				return settled, fmt.Errorf("after %d of %s: %w", settled, all, err)
			default:
				applied = true
				audit(s, "a key was "+deed, by, f.Reason, "key", p.Record.Key, "attempt", p.Record.Attempt, "was", p.Record.Status.String(),
					"report", p.Where())
			}
		}
		if applied {
			settled++
		}
		line.say("%d of %s", i+1, all)
		if f.json() {
			if err := printJSON(settledJSON{"decision", p.Record.Key.Scope, p.Record.Key.Operation, p.Record.Key.ID, p.Record.Key.String(),
				becomes, applied}); err != nil {
				return settled, err
			}
		}
	}
	line.end()
	if !f.json() {
		if f.DryRun {
			fmt.Printf("%d of %s: would be settled\n", len(f.plan), all)
		} else {
			fmt.Printf("%d of %s: settled\n", settled, all)
		}
	}
	if f.left > 0 {
		note("%s more can be settled: run it again.", show.Count(f.left, "key", "keys"))
	}
	if overtaken > 0 {
		return settled, moved("%d of %s changed after they were compared and were left as they are", overtaken, all)
	}
	return settled, nil
}

// confirm asks for a yes to the plan, unless nothing will be changed.
func (f *findings) confirm(ctx context.Context, s *session) error {
	if f.DryRun {
		return nil
	}
	counts := make(map[string]int)
	for i := range f.plan {
		_, becomes := f.plan[i].Verb()
		counts[becomes]++
	}
	what := "  by the report " + show.Line(f.Against) + ":"
	if n := counts["done"]; n > 0 {
		what += fmt.Sprintf("\n  %6d  become done, because it has them, with %s", n,
			map[bool]string{true: "the line as their outcome", false: "no outcome"}[f.Outcome == "line"])
	}
	if n := counts["free"]; n > 0 {
		what += fmt.Sprintf("\n  %6d  become free, because it lacks them: the next call with such a key runs the work", n)
	}
	for i := range f.plan {
		if i == maxNamed {
			what += fmt.Sprintf("\n  and %d more; --dry-run -o json lists all", len(f.plan)-maxNamed)
			break
		}
		p := &f.plan[i]
		_, becomes := p.Verb()
		what += fmt.Sprintf("\n  %s, %v, becomes %s", describe(p.Record.Key), p.Record.Status, becomes)
	}
	return f.change().confirm(ctx, s, what)
}
