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

func newShown(line *progress) *shown {
	s := &shown{line: line}
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
