package models

import (
	_ "embed"
	"fmt"
	"strings"
)

// laneStep is a change of a lane or of a message in the outbox, or a call that
// begins, as the model has it: the numbers that lanes.pml prints, in its order.
type laneStep struct {
	who  int  // an index of laneWho
	verb int  // an index of laneVerbs
	of   int  // an index of laneStates, or of rowStates
	odd  bool // an index of laneOdds is verb
}

const (
	byHolder = iota // the relay that has the lane, or that leases it
	byOther         // another one
	byAPerson
)

const (
	leasesLane = iota
	releasesLane
	sendsOne
	holdsOne
	sticksOne
	endsOne
	parksRow
	replaysRow
	discardsRow
	changesNothing // which is no step
)

const (
	freeLane = iota
	ownLane
	ownLapsed
	otherLapsed
)

const (
	rowPending = iota
	rowHeld
	rowStuck
	rowGone
)

var (
	laneWho    = [...]string{"owner", "other", "person"}
	laneVerbs  = [...]string{"leases", "releases", "sends", "holds", "makes stuck", "ends", "parks", "replays", "discards"}
	laneStates = [...]string{"that is free", "of its own", "of its own that has lapsed", "of another that has lapsed"}
	rowStates  = [...]string{"pending", "held", "stuck", "gone"}
	laneOdds   = map[int]string{releasesLane: ", whose relay still counts on it", sendsOne: ", before one of its key", endsOne: ", unpublished"}
)

// String returns a line of lanes.steps.
func (s laneStep) String() (text string) {
	switch {
	case s.verb == leasesLane:
		text = "relay leases a lane " + laneStates[s.of]
	case s.verb == releasesLane && s.who == byOther:
		text = "other releases the lane of a relay that is gone"
		if s.of == ownLapsed {
			text += ", and has lapsed"
		}
	case s.verb == releasesLane:
		text = "owner releases a lane " + laneStates[s.of]
	default:
		text = laneWho[s.who] + " " + laneVerbs[s.verb] + " one that is " + rowStates[s.of]
	}
	if s.odd {
		text += laneOdds[s.verb]
	}
	return text
}

// parseLaneStep reads what lanes.pml prints.
func parseLaneStep(line string) (s laneStep, err error) {
	var odd int
	_, err = fmt.Sscanf(strings.TrimSpace(line), "step %d %d %d %d", &s.who, &s.verb, &s.of, &odd)
	s.odd = odd > 0
	return s, err
}

// stepsOfLanes has the changes that the model lanes.pml makes, each in a line.
// TestStepsOfLanes compares it with what Spin finds.
//
//go:embed lanes.steps
var stepsOfLanes string

var allowedOfLanes = linesOf(stepsOfLanes)
