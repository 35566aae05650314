package sim

import (
	"errors"
	"fmt"
	"time"
)

// FaultKind is what goes wrong with one call over a boundary.
type FaultKind int

const (
	NoFault FaultKind = iota
	Before            // it fails, and was not applied
	After             // it was applied, and its reply is lost at once
	Hang              // it was never applied, and nobody answers
	Late              // nobody answers, and it is applied seconds later
	Twice             // it is applied again a moment later
	Slow              // it is applied at once, and its reply takes seconds
	Cut               // its caller's context ended on the way: this is never drawn
)

func (k FaultKind) String() string {
	return [...]string{"", "fails before", "reply lost", "hangs", "late", "twice", "slow reply", "cut"}[k]
}

// What may go wrong with a call depends on what it does.
var (
	AnyFault   = []FaultKind{Before, After, Hang, Late, Twice, Slow}
	WriteFault = []FaultKind{Before, After, Hang, Late, Slow}
	ReadFault  = []FaultKind{Before, Hang, Slow}
	LostOnly   = []FaultKind{Before}
)

// Chances are the probabilities of faults, for each call.
type Chances struct{ Before, After, Hang, Late, Twice, Slow float64 }

func (c Chances) of(k FaultKind) float64 {
	return [...]float64{0, c.Before, c.After, c.Hang, c.Late, c.Twice, c.Slow, 0}[k]
}

// Fault is a fault that happened.
type Fault struct {
	ID string // identifies the decision
	At time.Duration
}

var (
	// ErrReset is the error of a call that may or may not have been applied.
	ErrReset = errors.New("sim: connection reset")

	// ErrDown is the error of a call to what is down. It was not applied.
	ErrDown = errors.New("sim: connection refused")

	// ErrDead is the error of all calls of a process that was killed.
	ErrDead = errors.New("sim: this process is dead")
)

// Law is a rule that must always hold.
type Law string

// RunEnded says that no fault makes a program return an error.
const RunEnded Law = "run-ended"

// Break is a law that was broken.
type Break struct {
	Law   Law
	About string // the key or message
	Note  string
	At    time.Duration
}

func (b Break) String() string { return fmt.Sprintf("%s: %s: %s", b.Law, b.About, b.Note) }
