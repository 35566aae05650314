package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/internal/name"
)

// disagreementJSON is the JSON form of a finding.
type disagreementJSON struct {
	Kind       string `json:"kind"`
	Scope      string `json:"scope"`
	Operation  string `json:"operation"`
	ID         string `json:"id"`
	Key        string `json:"key"`
	Status     string `json:"status"`
	Attempt    int64  `json:"attempt"`
	Lines      []int  `json:"lines"`
	LineStatus string `json:"line_status,omitempty"`
	Theirs     string `json:"theirs,omitempty"`
	Ours       string `json:"ours,omitempty"`
	Why        string `json:"why,omitempty"`
	Supports   string `json:"supports,omitempty"`
}

func disagreementOf(f crosscheck.Finding) disagreementJSON {
	j := disagreementJSON{f.Kind.String(), f.Key.Scope, f.Key.Operation, f.Key.ID, f.Travel, f.Record.Status.String(), f.Record.Attempt,
		f.Lines, f.Status, f.Theirs, f.Ours, f.Why, ""}
	if j.Lines == nil {
		j.Lines = []int{}
	}
	switch f.Supports {
	case crosscheck.MarkDone:
		j.Supports = "done"
	case crosscheck.MarkNotDone:
		j.Supports = "not_done"
	}
	return j
}

// settledJSON is the JSON form of a decision.
type settledJSON struct {
	Kind      string `json:"kind"`
	Scope     string `json:"scope"`
	Operation string `json:"operation"`
	ID        string `json:"id"`
	Key       string `json:"key"`
	Becomes   string `json:"becomes"`
	Applied   bool   `json:"applied"`
}

// comparedJSON is the JSON form of a summary.
type comparedJSON struct {
	Kind     string         `json:"kind"`
	Column   string         `json:"column"`
	Lines    int            `json:"lines"`
	Skipped  int            `json:"skipped"`
	Others   int            `json:"others"`
	OnlyOpen bool           `json:"only_open"`
	Counts   map[string]int `json:"counts"`
	Cut      bool           `json:"cut,omitempty"`     // the last line has no end
	Damaged  int            `json:"damaged,omitempty"` // lines and records that were not compared: a record cannot be read

	// NotHappened counts the lines with statuses that are not in --happened.
	NotHappened map[string]int `json:"not_happened,omitempty"`
}

// print prints the findings. With JSON, only the summary is left to print.
func (f *findings) print(ctx context.Context, report *crosscheck.Report) error {
	if f.json() {
		j := comparedJSON{"summary", report.Column, report.Lines, report.Skipped, f.Others, f.OnlyOpen,
			map[string]int{}, report.Cut, f.Damaged, report.NotHappened}
		for _, kind := range crosscheck.Kinds() {
			j.Counts[kind.String()] = f.Counts[kind]
		}
		return printJSON(j)
	}
	table := newTable("FOUND", "KEYS", "MEANING")
	examples := newTable("FOUND", "ID", "SCOPE", "HERE", "LINES", "WHY")
	some := false
	for _, kind := range crosscheck.Kinds() {
		if n := f.Counts[kind]; n > 0 || kind == crosscheck.Agrees {
			table.Row(kind.String(), fmt.Sprint(n), show.Text(kind.Meaning()))
		}
		if !kind.Disagrees() {
			continue
		}
		for _, e := range f.examples[kind] {
			some = true
			id, why := e.Key.ID, e.Why
			if id == "" {
				id = e.Travel
			}
			if kind == crosscheck.Differs {
				why = "there " + e.Theirs + ", here " + e.Ours
			}
			examples.Row(kind.String(), id, e.Key.Scope, e.Record.Status.String(), linesOf(e.Lines), show.Short(why))
		}
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	if some {
		fmt.Println()
		if err := examples.Print(os.Stdout); err != nil {
			return err
		}
	}
	f.advise(ctx)
	f.caution(report)
	return nil
}

const maxStatuses = 10 // in a note

// statusesOf returns the most frequent statuses with the numbers of their lines.
func statusesOf(lines map[string]int) string {
	all := slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[b], lines[a]), cmp.Compare(a, b))
	})
	var b strings.Builder
	for i, status := range all {
		if i == maxStatuses {
			return b.String() + ", …"
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%d)", show.Quote(status), lines[status])
	}
	return b.String()
}

const maxLines = 5 // of one key in a table

func linesOf(lines []int) string {
	var b strings.Builder
	for i, n := range lines {
		if i == maxLines {
			return b.String() + " …"
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}

// caution says what the comparison does not cover.
func (f *findings) caution(report *crosscheck.Report) {
	if f.OnlyOpen {
		note("This store lists only keys that are not done. What is done here and missing in the report cannot be told.")
	}
	if f.Damaged > 0 {
		note("Lines or records were not compared, because a record cannot be read: %d. The first: %v.", f.Damaged, f.Damage)
	}
	if report.Cut {
		note("The last line of the report has no end: the report may have been cut off. Compare its length with what the other system says.")
	}
	if len(report.NotHappened) > 0 {
		note("These statuses count as not happened: %s. If one of them did happen, name it with --happened too: otherwise double effects are not found.", statusesOf(report.NotHappened))
	}
	if report.Skipped > 0 {
		note("Lines without an ID were skipped: %d.", report.Skipped)
	}
	if f.Others > 0 {
		note("Lines about keys of other operations or scopes were not compared: %d.", f.Others)
	}
	if f.Counts[crosscheck.NotThere] > 0 && time.Time(f.Since).IsZero() && time.Time(f.Until).IsZero() {
		note("Without --since and --until, the report counts as one of all time.")
	}
	if f.Known+f.Others > 0 || report.Lines == 0 {
		return
	}
	hint := "check the column, --operation, --scope and the target"
	if e := f.examples[crosscheck.NotHere]; len(e) > 0 && name.Parse(e[0].Key.ID) != [16]byte{} {
		hint = "the column has keys as they travel: use --key-column " + word(report.Column)
	}
	note("No key of the report is known here: %s.", hint)
}

// advise prints what to do about each kind of finding, with the command for its
// first example.
func (f *findings) advise(ctx context.Context) {
	begun := false
	say := func(kind crosscheck.Kind, text, command string) {
		if !begun {
			fmt.Println()
		}
		begun = true
		fmt.Printf("%v: %s\n  %s\n", kind, text, show.Lines(secret.From(ctx).Hide(command)))
	}
	for _, kind := range crosscheck.Kinds() {
		if !kind.Disagrees() || len(f.examples[kind]) == 0 {
			continue
		}
		e := f.examples[kind][0]
		key := func(verb, flags string) string {
			if e.Key.Scope != "" {
				flags += " --scope " + word(e.Key.Scope)
			}
			if strings.HasPrefix(e.Key.ID, "-") || strings.HasPrefix(e.Key.Operation, "-") {
				flags += " --"
			}
			return "once " + verb + flags + " " + word(e.Key.Operation) + " " + word(e.Key.ID)
		}
		const decided = " --reason '…'"
		switch kind {
		case crosscheck.HappenedTwice, crosscheck.NotHere:
			say(kind, kind.Advice(), f.key(e, key("keys get", "")))
		case crosscheck.RejectedHere, crosscheck.Differs, crosscheck.NotComparable:
			say(kind, kind.Advice(), key("keys get", " --body"))
		case crosscheck.OpenHere:
			f.adviseOpen(say, key("keys get", ""))
		case crosscheck.NotThere:
			say(kind, kind.Advice(), key("keys forget", decided))
		case crosscheck.OpenNotThere:
			say(kind, kind.Advice()+" To free all that the report lacks, see --settle-missing-as-not-happened.", key("keys release", decided))
		}
	}
}

// key returns a command for a key of the report, or how to search for a key
// whose parts are not known.
func (f *findings) key(e crosscheck.Finding, command string) string {
	if e.Key.ID != "" {
		return command
	}
	return fmt.Sprintf("grep -n %s %s", word(e.Travel), word(f.Against))
}

// adviseOpen says how to complete all keys that happened by the report.
func (f *findings) adviseOpen(say func(crosscheck.Kind, string, string), get string) {
	if f.Settle {
		return
	}
	for _, e := range f.examples[crosscheck.OpenHere] {
		if e.Supports == crosscheck.MarkDone {
			again := make([]string, len(os.Args))
			for i, arg := range os.Args {
				again[i] = word(arg)
			}
			again[0] = "once"
			say(crosscheck.OpenHere, crosscheck.OpenHere.Advice()+" Parked keys need --parked too.",
				strings.Join(again, " ")+" --settle --outcome none --reason '…'")
			return
		}
	}
	say(crosscheck.OpenHere, "They are still running here: compare again later.", get)
}

// word quotes a word for a shell.
func word(text string) string {
	plain := func(r rune) bool {
		return r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:=@,+%", r))
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
