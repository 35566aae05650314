package main

import (
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/console/counted"
)

// shown counts the messages of a store in a first run, for people to say yes to. A line on the terminal says how far it
// is, and then how far the change is.
type shown struct {
	counted.Messages
	line  *progress
	total int // what there is to do
}

func newShown(line *progress, group groupID) *shown {
	s := &shown{line: line}
	s.Alike = string(group)
	s.Counted = func(n int) { line.say("%s counted", show.Count(n, "message", "messages")) }
	s.Dealt = func(n int) { line.say("%d of %s", n, show.Count(s.total, "message", "messages")) }
	return s
}

// begin ends the count.
func (s *shown) begin(total int) {
	s.total = total
	s.Begin()
	s.line.end()
}

// failed says which group of failures the messages are of, on a line of its own.
func (s *shown) failed() string {
	text, ok := s.Failure()
	if !ok {
		return ""
	}
	return "\n  Failed alike: " + string(show.Short(text))
}

// attrs are what an audit line says besides. The group has its ID there, because a
// reason may be sealed in the store.
func (s *shown) attrs(matched, changed int) []any {
	attrs := []any{"matched", matched, "changed", changed}
	if s.Alike != "" {
		attrs = append(attrs, "alike", s.Alike)
	}
	return attrs
}
