package models

import (
	_ "embed"
	"fmt"
	"strings"
)

// positionStep is a change of what a store holds for a consumer with positions, as
// the model has it: the numbers that positions.pml prints, in its order.
type positionStep struct {
	who    int  // an index of positionWho
	verb   int  // an index of positionVerbs
	of     int  // where a message comes to or from: an index of positionOf
	behind bool // an earlier one of its ordering key is on the shelf
}

const (
	byOwner  = iota // the process that has opened the position last
	byRival         // another one
	byWorker        // whoever takes messages from the shelf
	byPerson
)

const (
	opensIt = iota
	movesIt
	handlesOne
	parksOne
	replaysOne
	discardsOne
	setsItBack
)

const (
	itsEffect = iota
	waitingOne
	parkedOne
)

var (
	positionWho   = [...]string{"owner", "rival", "worker", "person"}
	positionVerbs = [...]string{"opens", "moves", "handles", "parks", "replays", "discards", "sets back"}
	positionOf    = [...]string{"an effect", "waiting", "parked"}
)

// String returns a line of positions.steps.
func (s positionStep) String() string {
	text := positionWho[s.who] + " " + positionVerbs[s.verb]
	switch s.verb {
	case opensIt, setsItBack:
		return text + " the position"
	case movesIt:
		text += " the position past one, with " + positionOf[s.of]
		if s.of != itsEffect {
			text = strings.Replace(text, "with", "onto the shelf", 1)
		}
	default:
		text += " one that is " + positionOf[s.of]
	}
	if s.behind {
		text += ", behind another"
	}
	return text
}

// parsePositionStep reads what positions.pml prints.
func parsePositionStep(line string) (s positionStep, err error) {
	var behind int
	_, err = fmt.Sscanf(strings.TrimSpace(line), "step %d %d %d %d", &s.who, &s.verb, &s.of, &behind)
	s.behind = behind > 0
	return s, err
}

// stepsOfPositions has the changes that the model positions.pml makes, each in a
// line. TestStepsOfPositions compares it with what Spin finds.
//
//go:embed positions.steps
var stepsOfPositions string

var allowedOfPositions = linesOf(stepsOfPositions)

func linesOf(steps string) map[string]bool {
	all := make(map[string]bool)
	for line := range strings.Lines(steps) {
		all[strings.TrimSpace(line)] = true
	}
	return all
}
