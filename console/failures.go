package console

import (
	"strings"

	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/store"
)

// maxFailures is how many groups of failures a list shows.
const maxFailures = 10

// failures are the groups of failures among the messages that a list could show.
type failures struct {
	Rows   []failureRow
	Others int // groups that are not shown
	Of     int // messages that were counted
	Cut    bool
}

// failureRow is a group of failures.
type failureRow struct {
	URL, Text, Count string
	One              bool
	Unknown          bool // what they did may have happened
	Oldest, Newest   string
	Consumers        string
	Current          bool
}

// failed are the states of messages whose reasons say why they failed.
var failed = map[string]bool{"parked": true, "waiting": true, "stuck": true, "held": true}

// surveyOf returns what counts the failures of a list, or nil if it would say nothing:
// in states without failures, and on later pages.
func surveyOf(s selection, after int64) *survey {
	if !failed[s.State] || after > 0 {
		return nil
	}
	return new(survey)
}

// failuresOf returns the groups that a survey has counted, or nil if there is nothing to
// choose from.
func (v *view) failuresOf(p *messagesPage, of *survey) *failures {
	if of == nil {
		return nil
	}
	groups := of.Largest()
	if len(groups) < 2 && (p.Sel.Alike == "" || len(groups) == 0) {
		return nil
	}
	f := failures{Of: of.Count, Cut: of.Cut, Others: max(len(groups)-maxFailures, 0)}
	for i, g := range groups {
		current := g.ID == p.Sel.Alike
		if i >= maxFailures && !current {
			continue
		}
		if i >= maxFailures { // it is shown besides
			f.Others--
		}
		f.Rows = append(f.Rows, v.failureRow(p, g, of.Cut, current))
	}
	return &f
}

func (v *view) failureRow(p *messagesPage, g alike.Group, more, current bool) failureRow {
	sel := p.Sel
	sel.Alike = g.ID
	row := failureRow{URL: v.link(p.Path, sel.pairs()...), Text: failureText(g.Text), Count: plus(g.Count, more), One: g.Count == 1,
		Unknown: strings.HasPrefix(g.Text, store.UnknownOutcome), Oldest: v.ago(g.Oldest), Newest: v.ago(g.Newest), Current: current}
	var names []string
	for _, name := range g.Consumers {
		names = append(names, legible.Line(name))
	}
	row.Consumers = strings.Join(names, ", ")
	return row
}

// alikeLink returns the list of the messages that failed like one, of the same consumer,
// or "" if that one has not failed.
func (v *view) alikeLink(path string, s selection, reason string) string {
	if !failed[s.State] || reason == "" {
		return ""
	}
	s.ID, s.Alike = "", alike.ID(alike.Text(reason))
	return v.link(path, s.pairs()...)
}
