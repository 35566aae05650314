// Package demo runs a shop under everything that can go wrong between a click and its effects, and counts what came of
// it: once for a shop as it is usually written by hand, once for the same shop with package once.
//
//	customer ── HTTP ──▶ shop ── message ──▶ broker ──▶ billing: charges at a payment provider
//	                      │                        ├──▶ points:  adds to a row
//	                      ▼                        └──▶ letters: sends one, which nobody can ask about
//	                   database
//
// The broker is in this process, behind a socket, the database SQLite, the payment provider and the mail server are played
// by this process. The shop is several processes, which are killed with SIGKILL where the schedule says so: a process
// asks at each point at which something is to be done to its order, and waits there, so that every crash is aimed and
// none depends on timing. To each order one thing is done at most, but what is killed beside it may hit it too. What is
// counted is the effects themselves: rows, charges at the provider, points, letters.
//
// A killed process loses nothing that the operating system has been given, so the demo says nothing about power
// failures. Races are as real as two processes that get the same thing at the same moment, and so the unprotected side
// may differ by a few from run to run. The protected side may not.
//
// The package belongs to the command and has no compatibility to keep.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Options choose how large the demo is. What has no default is mandatory.
type Options struct {
	Seed     uint64
	Orders   int
	Duration time.Duration // instead of Orders: how long orders are placed
	Scenario string        // the only thing that is done to orders: the name of a window; default: everything
	Workers  int           // processes on each side; a race needs two
	Keep     bool          // keep the directory with the databases and the charges
	Command  []string      // starts a process, which calls Work
	Progress func(Report)  // called now and then, one call at a time; default: nobody is told
}

const progressEvery = 200 * time.Millisecond

// Run runs both sides at once, on the same schedule, and reports what they did.
// It ends its processes and removes its files, also when ctx ends. What is kept has its name in the report, also with an error.
func Run(ctx context.Context, o Options) (Report, error) {
	dir, err := os.MkdirTemp("", "once-demo-")
	if err != nil {
		return Report{}, err
	}
	report, err := runIn(ctx, dir, o)
	if !o.Keep {
		return report, errors.Join(err, os.RemoveAll(dir))
	}
	report.Directory = dir
	return report, err
}

func runIn(ctx context.Context, dir string, o Options) (Report, error) {
	r := &run{options: o, begun: time.Now()}
	for _, name := range []string{Without, With} {
		s, err := newSide(ctx, name, dir, o)
		if err != nil {
			return Report{}, err
		}
		defer s.close()
		r.sides = append(r.sides, s)
	}
	if err := r.serve(ctx); err != nil {
		return Report{}, err
	}
	for _, s := range r.sides {
		if err := s.provider.save(filepath.Join(dir, s.name+"-charges.json")); err != nil {
			return Report{}, err
		}
	}
	return r.report(ctx)
}

// run is one run of the demo.
type run struct {
	options Options
	sides   []*side
	begun   time.Time
}

// serve returns when all orders of both sides are dealt with.
func (r *run) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, s := range r.sides {
		running.Go(func() {
			if err := s.run(ctx); err != nil {
				cancel(fmt.Errorf("%s: %w", s.name, err))
			}
		})
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	if r.options.Progress != nil {
		watching.Go(func() { r.watch(ctx, done) })
	}
	running.Wait()
	close(done)
	watching.Wait()
	return context.Cause(ctx)
}

// watch reports progress until done.
func (r *run) watch(ctx context.Context, done <-chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			if report, err := r.report(ctx); err == nil {
				r.options.Progress(report)
			}
		}
	}
}

func (r *run) report(ctx context.Context) (Report, error) {
	without, byHand, err := r.sides[0].count(ctx)
	if err != nil {
		return Report{}, err
	}
	with, once, err := r.sides[1].count(ctx)
	return Report{
		Orders:   r.options.Orders,
		Seed:     r.options.Seed,
		Scenario: r.options.Scenario,
		Seconds:  float64(time.Since(r.begun).Milliseconds()/10) / 100,
		Without:  without,
		With:     with,
		Windows:  results(byHand, once),
	}, err
}
