// Package demo runs a shop, injects the faults that can happen between a click
// and its effects, and counts the effects. It runs two versions side by side: a
// shop as it is usually written by hand, and the same shop with package once.
//
//	customer ── HTTP ──▶ shop ── message ──▶ broker ──▶ billing: charges at a payment provider
//	                      │                        ├──▶ points:  adds to a row
//	                      ▼                        └──▶ letters: sends one, which cannot be looked up
//	                   database
//
// There is a broker on purpose, although a database can carry the messages itself
// (see examples/quickstart): six of the thirteen faults lie between the two. They
// are a crash after the publishing, an outage, a copy, a race, a lost
// acknowledgement, and a crash before the acknowledgement.
//
// This process runs the broker, on a socket, and plays the payment provider and
// the mail server. The database is SQLite. The shop is several processes, which
// are killed with SIGKILL at the points of the schedule. At each point at which
// a fault may be injected into its order, a process asks and waits for the
// answer, so no crash depends on timing. An order has at most one fault of its
// own, but a kill may also hit other orders of the same process. The demo counts
// the effects themselves: rows, charges at the provider, points and letters.
//
// The demo shows nothing about power failures, because a killed process loses
// nothing that it has handed to the operating system. In a race, two processes
// receive the same order at the same moment, so the results of the
// unprotected side may differ slightly from run to run. Those of the protected
// side do not.
//
// The package belongs to the command and promises no compatibility.
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

// Options configure the demo. Fields without a default are required.
type Options struct {
	Seed     uint64
	Orders   int
	Duration time.Duration // instead of Orders: how long orders are placed
	Scenario string        // name of the only window; default: everything
	Workers  int           // processes per side; a race needs two
	Keep     bool          // keep the directory with the databases and the charges
	Command  []string      // starts a process, which calls Work
	Progress func(Report)  // called occasionally, one call at a time; default: none
	Lasting  *Lasting      // instead of Orders and Duration; default: none
}

const progressEvery = 200 * time.Millisecond

// Run runs both sides at once, on the same schedule, and reports the results.
// It ends its processes and removes its files, even when ctx ends. The report
// names what is kept, even with an error.
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

// serve returns when all orders of both sides are settled.
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
