package sim

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// Line is a line of the history: a call over a boundary, or something that
// happened to the world.
type Line struct {
	At    time.Duration // since the world began
	Who   string        // the process, or empty
	What  string        // the call, or what happened
	About string        // the objects of the call
	Nth   int           // how often this was called before, from 1 on; 0: it is no call
	Fault FaultKind
	Note  string // the error, or more about what happened

	isLaw bool // a law is broken
}

func (l Line) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%14.6f", l.At.Seconds())
	for _, part := range []string{l.Who, l.What, l.About} {
		if part != "" {
			b.WriteString(" " + part)
		}
	}
	if l.Nth > 0 {
		fmt.Fprintf(&b, " #%d", l.Nth)
	}
	if l.Fault != NoFault {
		b.WriteString(" [" + l.Fault.String() + "]")
	}
	if l.Note != "" {
		b.WriteString(": " + l.Note)
	}
	return b.String()
}

// Digest identifies a history.
func Digest(history []Line) uint64 {
	h := fnv.New64a()
	for _, l := range history {
		h.Write([]byte(l.String()))
		h.Write([]byte{'\n'})
	}
	return h.Sum64()
}

// firstLine returns the first line of an error's text, or nothing for nil.
func FirstLine(err error) string {
	if err == nil {
		return ""
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}
