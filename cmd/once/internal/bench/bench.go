// Package bench measures the cost of guarded work on a user's own database,
// relative to the same transaction without a guard.
package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// Operation is the operation of all keys.
const Operation = "once-bench"

const (
	keep      = time.Minute // how long a key is kept
	turn      = 500 * time.Millisecond
	minRounds = 5                // for a meaningful median
	patience  = 30 * time.Second // for finishing and cleaning up
)

// Options are the options of [Run].
type Options struct {
	Workers  int                // the target needs as many connections
	Length   time.Duration      // per variant
	Progress func(done, of int) // called after each turn
}

// Rounds returns the number of turns per variant.
func (o Options) Rounds() int { return max(minRounds, int((o.Length+turn-1)/turn)) }

// ErrStays is wrapped by the error for a scratch table that could not be
// dropped.
var ErrStays = errors.New("the scratch table could not be dropped: drop it by hand, or with another once bench")

// bench is a running measurement.
type bench struct {
	target  *target.Target
	work    *once.Operation[struct{}]
	run     string // prefix of its keys
	workers []worker
	insert  string
	keys    atomic.Int64 // number of keys made
}

// worker runs one call after the other.
type worker struct {
	took []time.Duration // durations in this turn
	last string          // its latest key of a transaction
}

// Run measures and cleans up: the scratch table is gone when Run returns, even
// if ctx ended. The report lists remaining keys, even with an error.
func Run(ctx context.Context, t *target.Target, o Options) (r Report, err error) {
	if t.Engine == target.SQLite {
		t.DB.SetMaxOpenConns(1) // writers wait for each other anyway; a queue avoids retries
	}
	b := &bench{target: t, run: rand.Text(), workers: make([]worker, o.Workers), insert: insertInto(t),
		work: &once.Operation[struct{}]{Name: Operation, OnUnknown: once.Resend,
			Policy: once.Policy{KeepOutcome: keep, KeepKey: keep}}}
	r.Rounds = o.Rounds()
	defer func() {
		if stays := drop(ctx, t); stays != nil {
			err = errors.Join(err, fmt.Errorf("%w: %s: %w", ErrStays, Scratch(t), stays))
		}
		r.Keys = b.forget(ctx)
	}()
	if err := create(ctx, t); err != nil {
		return r, fmt.Errorf("the scratch table %s could not be made: %w", Scratch(t), err)
	}
	sides := b.sides()
	for _, s := range sides { // opens connections and checks tables before the measurement
		if _, err := b.turn(ctx, s, 0); err != nil {
			return r, err
		}
	}
	for round := range r.Rounds {
		for i := range sides { // each round begins with another variant
			s := sides[(round+i)%len(sides)]
			elapsed, err := b.turn(ctx, s, o.Length/time.Duration(r.Rounds))
			if err != nil {
				return r, err
			}
			s.add(b.workers, elapsed)
			if o.Progress != nil {
				o.Progress(round*len(sides)+i+1, r.Rounds*len(sides))
			}
		}
	}
	for _, s := range sides {
		r.Sides = append(r.Sides, s.against(sides[0]))
	}
	return r, nil
}

func (b *bench) sides() []*side {
	return []*side{
		{name: "bare", do: func(ctx context.Context, _ *worker) error {
			return b.target.Bare(ctx, b.insert)
		}},
		{name: "dotx-new", do: func(ctx context.Context, w *worker) error {
			id := b.id()
			err := b.target.Guarded(ctx, b.work.For(id), b.insert)
			if err == nil {
				w.last = id
			}
			return err
		}},
		{name: "dotx-duplicate", do: func(ctx context.Context, w *worker) error {
			var how once.Report
			err := b.target.Guarded(ctx, b.work.For(w.last).Report(&how), b.insert)
			if err == nil && !how.Replayed {
				err = fmt.Errorf("a duplicate was not known any more: a round took longer than %v", keep)
			}
			return err
		}},
		{name: "do", do: func(ctx context.Context, _ *worker) error {
			_, err := once.Do(ctx, b.target.Store, b.work.For(b.id()), nothing)
			return err
		}},
	}
}

func nothing(context.Context, once.Key) (none struct{}, err error) { return none, nil }

func (b *bench) id() string { return fmt.Sprintf("%s-%d", b.run, b.keys.Add(1)) }

// turn lets all workers run one variant for some time, at least once each. It
// finishes what it has begun even if ctx ends, because an abandoned key would
// stay.
func (b *bench) turn(ctx context.Context, s *side, length time.Duration) (elapsed time.Duration, err error) {
	going, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := lasting(ctx, length+patience)
	defer cancel()
	var all sync.WaitGroup
	begun := time.Now()
	for i := range b.workers {
		w := &b.workers[i]
		w.took = w.took[:0]
		all.Go(func() {
			for at := begun; going.Err() == nil && (len(w.took) == 0 || at.Sub(begun) < length); {
				if err := s.do(ctx, w); err != nil {
					stop(fmt.Errorf("%s: %w", s.name, err))
					return
				}
				now := time.Now()
				w.took = append(w.took, now.Sub(at))
				at = now
			}
		})
	}
	all.Wait()
	return time.Since(begun), context.Cause(going)
}

// lasting returns a context that outlives ctx.
func lasting(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
