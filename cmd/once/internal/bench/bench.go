// Package bench measures the cost of guarded work on a user's own database,
// relative to the same transaction without a guard.
package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
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
	insert  target.Statement
	keys    atomic.Int64 // number of keys made
}

// The names of the variants.
const (
	Bare        = "bare"      // a transaction that inserts a row; without tables, two conditional writes
	Half        = "bare-half" // the same with half the workers
	ByHand      = "by-hand"   // it also inserts a key of its own
	New         = "dotx-new"  // it runs in once.DoTx
	Speculative = "dotx-speculative"
	Duplicate   = "dotx-duplicate" // its key is done
	Do          = "do"             // once.Do around nothing
	Async       = "do-async-commit"
	DoDuplicate = "do-duplicate" // its key is done; without tables
)

// worker runs one call after the other.
type worker struct {
	took []time.Duration // durations in this turn
	last string          // its latest key of a transaction; without tables, of Do
}

// Run measures and cleans up: the scratch table is gone when Run returns, even
// if ctx ended. The report lists remaining keys, even with an error.
func Run(ctx context.Context, t *target.Target, o Options) (r Report, err error) {
	b := &bench{target: t, run: rand.Text(), workers: make([]worker, o.Workers), work: operation()}
	r.Rounds = o.Rounds()
	if t.Tables == nil {
		defer func() { r.Keys = b.forget(ctx) }()
		return r, b.measure(ctx, o, &r)
	}
	if t.Engine == target.SQLite {
		t.Tables.DB.SetMaxOpenConns(1) // writers wait for each other anyway; a queue avoids retries
	}
	b.insert = insertRow(t)
	if r.Isolation, err = isolation(ctx, t); err != nil {
		return r, err
	}
	defer func() {
		if stays := drop(ctx, t); stays != nil {
			err = errors.Join(err, fmt.Errorf("%w: %s: %w", ErrStays, Scratch(t), stays))
		}
		r.Keys = b.forget(ctx)
	}()
	if err := create(ctx, t); err != nil {
		return r, fmt.Errorf("the scratch table %s could not be made: %w", Scratch(t), err)
	}
	return r, b.measure(ctx, o, &r)
}

// measure runs all variants in turns.
func (b *bench) measure(ctx context.Context, o Options, r *Report) error {
	sides := b.sides()
	for _, s := range sides { // opens connections and checks tables before the measurement
		if _, err := b.turn(ctx, s, 0); err != nil {
			return err
		}
	}
	for round := range r.Rounds {
		for i := range sides { // each round begins with another variant
			s := sides[(round+i)%len(sides)]
			elapsed, err := b.turn(ctx, s, o.Length/time.Duration(r.Rounds))
			if err != nil {
				return err
			}
			s.add(b.workers[:s.workers], elapsed)
			if o.Progress != nil {
				o.Progress(round*len(sides)+i+1, r.Rounds*len(sides))
			}
		}
	}
	for _, s := range sides {
		r.Sides = append(r.Sides, s.against(sides[0]))
	}
	return nil
}

// operation returns the operation of the keys.
func operation() *once.Operation[struct{}] {
	return &once.Operation[struct{}]{Name: Operation, OnUnknown: once.Resend, KeyValidFor: keep / 2,
		Policy: once.Policy{KeepOutcome: keep, KeepKey: keep}}
}

// sides returns the variants that the target has, the bare transaction first.
func (b *bench) sides() []*side {
	speculative, async := operation(), operation()
	speculative.Speculative, async.AsyncCommit = true, true
	all := len(b.workers)
	if b.target.Tables == nil {
		byHand := func(ctx context.Context, _ *worker) error { return b.target.ByHand(ctx, b.id(), keep) }
		return slices.DeleteFunc([]*side{
			{name: Bare, workers: all, do: byHand},
			{name: Half, workers: all / 2, do: byHand},
			{name: Do, workers: all, do: b.do(b.work)},
			{name: DoDuplicate, workers: all, do: func(ctx context.Context, w *worker) error {
				var how once.Report
				_, err := once.Do(ctx, b.target.Store, b.work.For(w.last).Report(&how), nothing)
				return known(err, how)
			}},
		}, func(s *side) bool { return s.workers == 0 })
	}
	sides := []*side{
		{name: Bare, workers: all, do: b.bare},
		{name: Half, workers: all / 2, do: b.bare},
		{name: ByHand, workers: all, do: func(ctx context.Context, _ *worker) error {
			return b.target.Tables.Bare(ctx, insertKey(b.target), b.insert)
		}},
		{name: New, workers: all, do: b.guarded(b.work)},
		{name: Speculative, workers: all, do: b.guarded(speculative)},
		{name: Duplicate, workers: all, do: func(ctx context.Context, w *worker) error {
			var how once.Report
			err := b.target.Tables.Guarded(ctx, b.work.For(w.last).Report(&how), b.insert)
			return known(err, how)
		}},
		{name: Do, workers: all, do: b.do(b.work)},
		{name: Async, workers: all, do: b.do(async)},
	}
	return slices.DeleteFunc(sides, func(s *side) bool {
		switch s.name {
		case Half:
			return s.workers == 0 || b.target.Engine == target.SQLite // which has one writer
		case Speculative, Async:
			return b.target.Engine != target.PostgreSQL
		}
		return false
	})
}

// known returns an error if a duplicate was not one.
func known(err error, how once.Report) error {
	if err == nil && !how.Replayed {
		return fmt.Errorf("a duplicate was not known any more: a round took longer than %v", keep)
	}
	return err
}

// Variants returns how many variants are measured.
func Variants(t *target.Target, workers int) int {
	return len((&bench{target: t, workers: make([]worker, workers)}).sides())
}

func (b *bench) bare(ctx context.Context, _ *worker) error {
	return b.target.Tables.Bare(ctx, b.insert)
}

func (b *bench) guarded(op *once.Operation[struct{}]) func(context.Context, *worker) error {
	return func(ctx context.Context, w *worker) error {
		id := b.id()
		err := b.target.Tables.Guarded(ctx, op.For(id), b.insert)
		if err == nil {
			w.last = id
		}
		return err
	}
}

func (b *bench) do(op *once.Operation[struct{}]) func(context.Context, *worker) error {
	return func(ctx context.Context, w *worker) error {
		id := b.id()
		_, err := once.Do(ctx, b.target.Store, op.For(id), nothing)
		if err == nil && b.target.Tables == nil {
			w.last = id
		}
		return err
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
	for i := range s.workers {
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
