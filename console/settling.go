package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/internal/legible"
)

// longestWhy leaves room for the line of the report in a stored reason.
const longestWhy = longestReason - 40

var settling = verb{Of: "keys", Do: "settle", Done: "settled", Paced: true, run: func(ctx context.Context, p *plan, _ int, dry bool) (tally, error) {
	if dry {
		return p.keys.count(ctx)
	}
	return p.keys.settle(ctx, p)
}}

// keyChange is a change of many keys, by what a report has about them. Each is changed
// only if it is as it was compared.
type keyChange struct {
	console *Console
	store   Store
	steps   []crosscheck.Planned
	next    func(ctx context.Context, most int) (int, error) // waits for the next one, or ends the job
	dealt   func(n int)
}

// count reads each record again, and keeps those that are as they were compared.
func (k *keyChange) count(ctx context.Context) (t tally, err error) {
	t.Matched = len(k.steps)
	same := k.steps[:0:0]
	for _, step := range k.steps {
		now, err := k.store.Store.Get(ctx, step.Record.Key)
		if err != nil {
			return t, err
		}
		if versionOf(now) == versionOf(step.Record) {
			same = append(same, step)
		}
	}
	k.steps = same
	t.Changed = len(same)
	t.Moved = t.Matched - t.Changed
	return t, nil
}

// settle makes the decisions. It leaves a key that has changed as it is.
func (k *keyChange) settle(ctx context.Context, p *plan) (t tally, err error) {
	for i := range k.steps {
		if _, err := k.next(ctx, 1); err != nil {
			return t, err
		}
		switch err := k.decide(ctx, p, &k.steps[i]); {
		case errors.Is(err, once.ErrLeaseLost):
			t.Moved++
		case err != nil:
			return t, err
		default:
			t.Changed++
		}
		k.dealt(i + 1)
	}
	return t, nil
}

// decide makes one decision, about the record that was compared.
func (k *keyChange) decide(ctx context.Context, p *plan, step *crosscheck.Planned) error {
	c := k.console
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, err := k.store.Store.Get(ctx, step.Record.Key)
	if err != nil {
		return err
	}
	if versionOf(now) != versionOf(step.Record) {
		return once.ErrLeaseLost
	}
	deed, _ := step.Verb()
	attrs := []any{"deed", deed, "by", p.By, "store", k.store.Name, "key", step.Record.Key, "reason", p.Reason, "attempt", step.Record.Attempt,
		"was", step.Record.Status.String(), "report", step.Where()}
	err = step.Settle(ctx, k.store.Store, p.By, p.Reason)
	switch {
	case err == nil:
		c.log.Info("console: audit", attrs...)
	case !errors.Is(err, once.ErrLeaseLost): // it may be recorded
		attrs[1] = "tried to have it " + deed
		c.log.Info("console: audit", append(attrs, "error", err)...)
	}
	return err
}

// settlePage asks which decisions are to be made, and why.
type settlePage struct {
	compared
	Problem                    string
	Reason, RateText           string
	LimitText                  string
	Happened, Missing, Parked  bool
	Line, Complete             bool
	NoLine                     string // why the lines cannot be outcomes
	Action                     string
	Unknowns, Parkeds, Missed  int
	ParkedDone, ParkedReleased int
}

// settleable returns a comparison whose keys can be settled, or says why not.
func (v *view) settleable() *comparison {
	x := v.comparisonNumbered(v.r.URL.Query().Get("number"))
	if x == nil {
		return nil
	}
	if p := v.comparedOf(x); p.State != jobFinished || p.CanComplete+p.CanRelease == 0 {
		v.fail(http.StatusConflict, "There is no key to settle by this report", "Nothing was changed. Settle keys by a comparison that has ended, and that found some that are unknown or parked.")
		return nil
	}
	return x
}

func (v *view) askSettling() {
	if x := v.settleable(); x != nil {
		v.askHow(x, http.StatusOK, settlePage{})
	}
}

func (v *view) askHow(x *comparison, status int, p settlePage) {
	p.compared = v.comparedOf(x)
	p.Action = v.link("/reconcile/settle", "number", fmt.Sprint(x.Number))
	x.mu.Lock()
	for _, kind := range []crosscheck.Kind{crosscheck.OpenHere, crosscheck.OpenNotThere} {
		for _, f := range x.found[kind] {
			switch {
			case f.Supports == crosscheck.None:
			case f.Record.Status == once.Parked && kind == crosscheck.OpenHere:
				p.ParkedDone++
			case f.Record.Status == once.Parked:
				p.ParkedReleased++
			case kind == crosscheck.OpenHere:
				p.Unknowns++
			default:
				p.Missed++
			}
			if f.Supports == crosscheck.MarkDone && f.Line == nil {
				p.NoLine = "The lines of the report are too long to be kept: use once reconcile for that."
			}
		}
	}
	x.mu.Unlock()
	v.render(status, "settle", page{Title: "Settle keys by a report", Nav: "reconcile", Body: p})
}

// agreeKeysPage repeats what will be changed.
type agreeKeysPage struct {
	*plan
	ID                  string
	Report              compared
	Completed, Released int
	Line, Complete      bool
	Left                int // that another job can settle
	Back                string
	First               []keyStep
}

type keyStep struct {
	Ref             keyRef
	Status, Becomes string
	Attempt         int64
	Where           string
}

// askAllSettling counts what is to be changed, and asks whether that is meant.
func (v *view) askAllSettling() {
	x := v.settleable()
	if x == nil {
		return
	}
	form := v.r.PostForm
	how := settlePage{Reason: strings.TrimSpace(form.Get("reason")), RateText: form.Get("rate"), LimitText: form.Get("limit"), Happened: form.Get("happened") == "yes",
		Missing: form.Get("missing") == "yes", Parked: form.Get("parked") == "yes", Line: form.Get("outcome") == "line", Complete: form.Get("complete") == "yes"}
	p := &plan{Verb: settling, By: v.who.Name, At: v.now(), Sel: selection{Of: "keys", Store: x.Store.Name, Comparison: x.Number,
		About: fmt.Sprintf("keys of %s, by the report %s", legible.Line(x.of.Operation), legible.Line(x.Label))}}
	left := 0
	how.Problem = p.settings(form)
	switch {
	case how.Problem != "":
	case len(p.Reason) > longestWhy:
		how.Problem = fmt.Sprintf("The reason has %d bytes, but only %d are stored: shorten it.", len(p.Reason), longestWhy)
	case !how.Happened && !how.Missing:
		how.Problem = "Choose what is to be settled."
	case how.Happened && form.Get("outcome") != "line" && form.Get("outcome") != "none":
		how.Problem = "Choose what duplicates of completed keys get."
	case how.Missing && x.may() != "":
		how.Problem = "A key that did happen could be released: " + x.may() + ". Find out first, or decide key by key."
	case how.Missing && !how.Complete:
		how.Problem = "To release keys that the report lacks, assert that it is complete for its time."
	}
	if how.Problem == "" {
		left, how.Problem = x.plan(p, how, v.Console)
	}
	if how.Problem != "" {
		v.askHow(x, http.StatusUnprocessableEntity, how)
		return
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), countTime)
	defer cancel()
	var err error
	if p.Tally, err = p.Verb.run(ctx, p, 0, true); err != nil {
		v.refused(p, err)
		return
	}
	p.counted = true
	agree := agreeKeysPage{plan: p, Report: v.comparedOf(x), Line: how.Line, Complete: how.Missing, Left: left,
		Back: v.link("/reconcile/settle", "number", fmt.Sprint(x.Number))}
	for i, step := range p.keys.steps {
		_, becomes := step.Verb()
		if step.Outcome == nil {
			agree.Released++
		} else {
			agree.Completed++
		}
		if i < maxSamples {
			agree.First = append(agree.First, keyStep{keyRef{x.Store.Name, step.Record.Key}, step.Record.Status.String(), becomes, step.Record.Attempt, step.Where()})
		}
	}
	if agree.Released > 0 {
		p.Assertion = "the report is complete from " + x.Period() + ": what it lacks did not happen, and no longer can"
	}
	if p.Tally.Changed > 0 {
		v.jobs.ask(p)
	}
	agree.ID = p.id
	v.render(http.StatusOK, "agreekeys", page{Title: "Settle keys by a report", Nav: "reconcile", Body: agree})
}

// may returns why keys that the report lacks must not be released, or "".
func (x *comparison) may() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.refusal
}

// plan adds the decisions. It returns how many are left for another job, and what is
// wrong with them.
func (x *comparison) plan(p *plan, how settlePage, c *Console) (left int, problem string) {
	with := crosscheck.Settling{Happened: how.Happened, Missing: how.Missing, Parked: how.Parked, LineAsOutcome: how.Line, MaxOutcome: x.Store.Store.Options().MaxOutcome}
	k := &keyChange{console: c, store: x.Store}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, kind := range []crosscheck.Kind{crosscheck.OpenHere, crosscheck.OpenNotThere} {
		for _, f := range x.found[kind] {
			step, ok, err := with.Plan(f.Finding)
			if err != nil {
				return 0, strings.TrimPrefix(err.Error(), once.ErrOutcomeTooLarge.Error()+": ") + ": store no outcome. Nothing was changed."
			}
			if !ok {
				continue
			}
			if step.Outcome != nil && how.Line && f.Line == nil {
				return 0, "The lines of the report are too long to be kept: store no outcome, or use once reconcile."
			}
			if p.Limit > 0 && len(k.steps) == p.Limit {
				left++
				continue
			}
			k.steps = append(k.steps, step)
		}
	}
	p.keys = k
	return left, ""
}
