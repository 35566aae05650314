package crosscheck

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
)

// Settling chooses which of the decisions that a report supports are made. The zero
// Settling makes none.
type Settling struct {
	Happened bool // complete keys that happened by the report
	Missing  bool // free keys that the report lacks; only if [Comparison.MayFree] allows it
	Parked   bool // parked keys too, not only unknown ones

	// LineAsOutcome stores the line of the report as JSON: only if the operation can
	// decode that as its result. Otherwise no outcome is stored, and duplicates get
	// once.ErrOutcomeUnavailable.
	LineAsOutcome bool

	MaxOutcome int // bytes that the store keeps of an outcome
}

// Planned is a decision to make about a record as it was compared.
type Planned struct {
	Record  once.Record
	Outcome *once.Outcome // nil: it did not happen
	Lines   []int         // of the report, that say so; empty: it lacks the key
}

// Plan returns the decision about a finding. It returns false if there is none to
// make.
func (s Settling) Plan(f Finding) (p Planned, ok bool, err error) {
	p = Planned{Record: f.Record, Lines: f.Lines}
	switch {
	case f.Record.Status == once.Parked && !s.Parked:
		return p, false, nil
	case f.Supports == MarkDone && s.Happened:
		p.Outcome = &once.Outcome{Omitted: true}
		if !s.LineAsOutcome {
			break
		}
		p.Outcome = &once.Outcome{Body: f.Line, ContentType: "application/json"}
		if len(f.Line) > s.MaxOutcome {
			return p, false, fmt.Errorf("%w: line %d of the report has %d bytes as an outcome, the store keeps %d",
				once.ErrOutcomeTooLarge, f.Lines[0], len(f.Line), s.MaxOutcome)
		}
	case f.Supports == MarkNotDone && s.Missing:
	default:
		return p, false, nil
	}
	return p, true, nil
}

// Verb returns what is done to the key, and what it becomes.
func (p *Planned) Verb() (deed, becomes string) {
	if p.Outcome == nil {
		return "released", "free"
	}
	return "completed", "done"
}

// Where says where the report has the key.
func (p *Planned) Where() string {
	if len(p.Lines) == 0 {
		return "not in the report"
	}
	return fmt.Sprintf("line %d of the report", p.Lines[0])
}

// Settle makes the decision, and records who made it and why. It returns
// once.ErrLeaseLost if the record has changed since it was compared.
func (p *Planned) Settle(ctx context.Context, s once.Store, by, reason string) error {
	deed, _ := p.Verb()
	reason = fmt.Sprintf("%s by %s: %s (%s)", deed, by, strings.TrimSpace(reason), p.Where())
	if p.Outcome == nil {
		return once.MarkNotDone(ctx, s, p.Record, reason)
	}
	return once.MarkDone(ctx, s, p.Record, *p.Outcome, reason)
}
