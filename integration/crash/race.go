//go:build linux

package crash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// race describes how duplicates of a call race.
type race struct {
	Duplicates int  // in this process
	Inside     bool // DoTx instead of Do
	NoWait     bool // duplicates in flight are refused, and do not wait for the answer
	Held       bool // the work does not end until a line is read
}

// The lines that a racing worker prints and reads.
const (
	ready   = "ready"
	start   = "start"
	release = "release"
)

// race makes all calls at once when it is told to start, and prints how each
// ended.
func (s *scene) race(ctx context.Context, r race, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	fmt.Fprintln(out, ready)
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		_, _ = lines.ReadString('\n')
	}()
	if r.Held {
		s.hold = func() { <-released }
	}
	var mu sync.Mutex // keeps lines whole
	var running sync.WaitGroup
	failures := make([]error, r.Duplicates)
	for i := range r.Duplicates {
		running.Go(func() {
			end := s.duplicate(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			failures[i] = end.say(out)
		})
	}
	running.Wait()
	return errors.Join(failures...)
}

const longWait = 30 * time.Second

func (s *scene) duplicate(ctx context.Context, r race) ending {
	op := s.asking()
	if op.Policy.Wait = longWait; r.NoWait {
		op.Policy.Wait = once.NoWait
	}
	var report once.Report
	var answer string
	var err error
	if unit := op.For(s.id).Report(&report); r.Inside {
		answer, err = s.doTx(ctx, unit, s.put(1))
	} else {
		answer, err = once.Do(ctx, s.world, unit, func(ctx context.Context, key once.Key) (string, error) {
			answer, err := s.send(ctx, key)
			if s.hold != nil {
				s.hold()
			}
			return answer, err
		})
	}
	return endingOf(answer, report, err)
}
