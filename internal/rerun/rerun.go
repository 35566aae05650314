// Package rerun repeats transactions that a database rolled back because of a
// conflict, or of which it is not known whether they were committed.
package rerun

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

const (
	// Limit is how long a transaction is repeated after its first conflict, if
	// its context has no deadline.
	Limit = time.Minute

	// turnTime is how long a transaction may keep its turn. It is longer than
	// an engine takes to detect a deadlock. It ends the wait for a transaction
	// that itself waits for a lock.
	turnTime = 2 * time.Second

	// commitTries is how many commits of a transaction may be lost before it is
	// given up.
	commitTries = 3
)

// Line lets the transactions of one process be repeated one at a time, first
// come first served. Transactions that deadlocked would deadlock again if they
// ran concurrently, however long they pause.
type Line struct{ turn chan struct{} }

// NewLine returns an empty line.
func NewLine() *Line { return &Line{turn: make(chan struct{}, 1)} }

// Enter waits for a turn. leave ends the turn, and may be called more than
// once.
func (l *Line) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	end := sync.OnceFunc(func() { <-l.turn })
	timer := time.AfterFunc(turnTime, end)
	return func() { timer.Stop(); end() }, nil
}

// Series spaces and bounds the runs of one transaction.
type Series struct {
	enter func(context.Context) (leave func(), err error)
	pause backoff.Backoff
	end   time.Time // zero: no conflict so far
	lost  int       // commits
	leave func()
}

// New returns the series of a transaction that calls enter after a conflict.
func New(enter func(context.Context) (leave func(), err error)) *Series {
	return &Series{enter: enter, pause: backoff.Backoff{First: 2 * time.Millisecond, Limit: 250 * time.Millisecond}}
}

// Again waits until the transaction may be repeated. It returns an error if ctx
// ends first, or if ctx has no deadline and the conflicts have lasted longer
// than Limit. Call Done after the last run.
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

// Lost counts a commit of which it is not known whether it happened. It returns
// false if the transaction must not be repeated to find that out.
func (s *Series) Lost() bool {
	s.lost++
	return s.lost < commitTries
}

// Done ends the turn of the last run.
func (s *Series) Done() {
	if s.leave != nil {
		s.leave()
		s.leave = nil
	}
}
