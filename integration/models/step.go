package models

import (
	_ "embed"
	"fmt"
	"strings"
)

// Kind is what is done under a key, and what happens if nobody knows whether it
// was.
type Kind int

const (
	Ask   Kind = iota // the other system is asked
	Keyed             // it is sent again, under the same key
	Park              // a person decides
	Tx                // it is in a transaction, with the key
)

// Who is who changes a record.
type Who int

const (
	Holder Who = iota // the process whose claim it is, or that claims
	Other             // another one, that asks or gives up
	Person
)

// verb is how a record is changed.
type verb int

const (
	claims verb = iota
	extends
	settles
	forgets
	commits // a claim and its settlement, in one transaction
)

// state is what a record says, and whether the lease of a claim is over.
type state int

const (
	isNew state = iota
	isFree
	isRunning
	isLapsed
	isUnknown
	isParked
	isDone
)

// Step is a change of a record, as the model has it: the numbers that key.pml
// prints, in its order.
type Step struct {
	kind     Kind
	who      Who
	verb     verb
	from, to state
	again    bool // it frees a key whose attempt before was unknown
	odd      bool // what is never right: see [Step.String]
}

var (
	kinds  = [...]string{"ask", "keyed", "park", "tx"}
	whos   = [...]string{"holder", "other", "person"}
	verbs  = [...]string{"claims", "extends", "settles", "forgets", "commits"}
	states = [...]string{"new", "free", "running", "lapsed", "unknown", "parked", "done"}
	odds   = [...]string{claims: "by its last owner", settles: "before SettleTime", forgets: "before its time", commits: ""}
)

// String returns a line of key.steps.
func (s Step) String() string {
	does := whos[s.who] + " " + verbs[s.verb]
	if s.verb == forgets {
		does = "is forgotten" // by whoever comes by
	}
	text := fmt.Sprintf("%s: %s, %s to %s", kinds[s.kind], does, states[s.from], states[s.to])
	if s.again {
		text += ", after a takeover"
	}
	if s.odd {
		text += ", " + odds[s.verb]
	}
	return text
}

// parseStep reads what key.pml prints.
func parseStep(line string) (s Step, err error) {
	var again, odd int
	_, err = fmt.Sscanf(strings.TrimSpace(line), "step %d %d %d %d %d %d %d", &s.kind, &s.who, &s.verb, &s.from, &s.to, &again, &odd)
	s.again, s.odd = again > 0, odd > 0
	if s.verb == commits {
		s.kind = Tx
	}
	return s, err
}

// stepsOfKey has the changes of a record that the model key.pml makes, each in a
// line. TestStepsOfTheModel compares it with what Spin finds.
//
//go:embed key.steps
var stepsOfKey string

// learned ends the line of a step that the model makes only if processes learn the
// time of the store, and know it within an interval.
const learned = ", by a learned clock"

// allowed has the lines of key.steps, and whether a step needs a learned clock.
var allowed = func() map[string]bool {
	all := make(map[string]bool)
	for line := range strings.Lines(stepsOfKey) {
		step, onlyLearned := strings.CutSuffix(strings.TrimSpace(line), learned)
		all[step] = onlyLearned
	}
	return all
}()

// Steps returns the steps that the model makes.
func Steps() (all []string) {
	for step := range allowed {
		all = append(all, step)
	}
	return all
}
