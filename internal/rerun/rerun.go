// Package rerun runs transactions again that a database rolled back because of a conflict.
package rerun

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

const (
	// Limit is how long a transaction is run again after its first conflict, if its context has no deadline.
	Limit = time.Minute

	// hold is how long one transaction holds the line up. It is longer than an engine takes to find a deadlock, and
	// ends the wait behind one that waits for a lock itself.
	hold = 2 * time.Second
)

// Line lets the transactions of one process be run again one at a time, in the order in which they come. Those of a
// deadlock that run again side by side close their cycle again, however long they pause.
type Line struct{ turn chan struct{} }

// NewLine returns an empty line.
func NewLine() *Line { return &Line{turn: make(chan struct{}, 1)} }

// Enter waits for a turn. leave ends it, and may be called more than once.
func (l *Line) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	end := sync.OnceFunc(func() { <-l.turn })
	timer := time.AfterFunc(hold, end)
	return func() { timer.Stop(); end() }, nil
}

// Series spaces and bounds the runs of one transaction.
type Series struct {
	enter func(context.Context) (leave func(), err error)
	pause backoff.Backoff
	end   time.Time // zero: no conflict so far
	leave func()
}

// New returns the series of a transaction that enters a line after a conflict.
func New(enter func(context.Context) (leave func(), err error)) *Series {
	return &Series{enter: enter, pause: backoff.Backoff{First: 2 * time.Millisecond, Limit: 250 * time.Millisecond}}
}

// Again waits until the transaction may be run again. It returns an error if ctx ends first, or if the transaction has met
// conflicts for longer than Limit and ctx has no deadline. Done must be called after the last run.
func (s *Series) Again(ctx context.Context, conflict bool) error {
	s.Done()
	if !conflict {
		return backoff.Sleep(ctx, s.pause.Next())
	}
	if s.end.IsZero() {
		s.end = time.Now().Add(Limit)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		limited, cancel := context.WithDeadline(ctx, s.end)
		defer cancel()
		ctx = limited
	}
	if err := backoff.Sleep(ctx, s.pause.Next()); err != nil {
		return err
	}
	leave, err := s.enter(ctx)
	s.leave = leave
	return err
}

// Done ends the turn of the last run.
func (s *Series) Done() {
	if s.leave != nil {
		s.leave()
		s.leave = nil
	}
}
