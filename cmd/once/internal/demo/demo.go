// Package demo feeds a payment handler everything that at-least-once delivery allows, and counts what came of it:
// once for a handler as it is usually written by hand, once for the same handler with package once.
//
// The broker and the payment provider are played by this process. The workers are processes of their own, and
// are killed with SIGKILL where the schedule says so: a worker reports that it has reached its point and waits
// there for the signal, so that every crash is aimed and none depends on timing. What is counted is the effects
// themselves: charges at the provider, and balances in the database.
//
// A killed process loses nothing that the operating system has been given, so the demo says nothing about
// power failures. Races are as real as two processes that get the same message at the same moment, and so the
// unprotected side may differ by a few from run to run. The protected side may not.
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
	Seed       uint64
	Orders     int          // 0: as many as Deliveries needs
	Deliveries int          // 0: as many as come of Orders
	Workers    int          // processes on each side; a race needs two
	Keep       bool         // keep the directory with the databases and the charges
	Command    []string     // starts a worker, which calls Work
	Progress   func(Report) // called now and then, one call at a time; default: nobody is told
}

const progressEvery = 100 * time.Millisecond

// Run runs both sides at once, on the same schedule, and reports what they did.
// It ends its workers and removes its files, also when ctx ends.
func Run(ctx context.Context, o Options) (Report, error) {
	dir, err := os.MkdirTemp("", "once-demo-")
	if err != nil {
		return Report{}, err
	}
	report, err := runIn(ctx, dir, o)
	switch {
	case !o.Keep:
		return report, errors.Join(err, os.RemoveAll(dir))
	case err != nil:
		return report, fmt.Errorf("%w (kept: %s)", err, dir)
	}
	report.Directory = dir
	return report, nil
}

func runIn(ctx context.Context, dir string, o Options) (Report, error) {
	r := &run{options: o, schedule: newSchedule(o), begun: time.Now()}
	for _, name := range []string{Without, With} {
		s, err := newSide(ctx, name, dir, r.schedule)
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
	options  Options
	schedule *schedule
	sides    []*side
	begun    time.Time
}

// serve returns when every message of both sides is acknowledged.
func (r *run) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for _, s := range r.sides {
		for range r.options.Workers {
			workers.Go(func() {
				if err := s.work(ctx, r.options.Command); err != nil {
					cancel(fmt.Errorf("%s: %w", s.name, err))
				}
			})
		}
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if r.options.Progress != nil {
			r.watch(ctx, done)
		}
	}()
	workers.Wait()
	close(done)
	<-watched
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
	report := Report{
		Orders:     len(r.schedule.orders),
		Deliveries: r.schedule.deliveries,
		Crashes:    r.schedule.crashes,
		Seed:       r.options.Seed,
		Seconds:    time.Since(r.begun).Round(10 * time.Millisecond).Seconds(),
	}
	for i, into := range []*Side{&report.Without, &report.With} {
		side, err := r.sides[i].count(ctx, r.schedule.orders)
		if err != nil {
			return report, err
		}
		*into = side
	}
	return report, nil
}
