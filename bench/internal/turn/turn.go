// Package turn has what the benchmark and the process of its peers share: how a
// turn is run and counted, and the messages between the two processes.
package turn

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Tally is the result of one turn.
type Tally struct {
	Units     int           // completed units of work
	PerSecond float64       // sum of the workers' own rates, because they stop at different times
	P50       time.Duration // of one unit
	P99       time.Duration
	Work      time.Duration // processor time on both sides, if the scenario measures it
}

// Working measures the Work of a turn.
func Working(run func() (Tally, error)) (Tally, error) {
	before, failed := Work()
	t, err := run()
	if err != nil || failed != nil {
		return t, err
	}
	after, failed := Work()
	if failed == nil {
		t.Work = after - before
	}
	return t, nil
}

// Run lets workers repeat unit until length is over. The first error ends the
// turn.
func Run(ctx context.Context, workers int, length time.Duration, unit func(context.Context) error) (Tally, error) {
	return RunWithin(ctx, workers, length, func(ctx context.Context, repeat func(func() error) error) error {
		return repeat(func() error { return unit(ctx) })
	})
}

// RunWithin is Run for work with a set-up that is not counted: each worker
// calls worker once, which calls repeat once.
func RunWithin(ctx context.Context, workers int, length time.Duration,
	worker func(ctx context.Context, repeat func(unit func() error) error) error) (Tally, error) {

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latencies, rates := make([][]time.Duration, workers), make([]float64, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			err := worker(ctx, func(unit func() error) (err error) {
				latencies[w], rates[w], err = repeat(ctx, length, unit)
				return err
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return count(slices.Concat(latencies...), rates), context.Cause(ctx)
}

// repeat begins units until the end of the turn, and at least one.
func repeat(ctx context.Context, length time.Duration, unit func() error) (latencies []time.Duration, rate float64, err error) {
	begun := time.Now()
	for at := begun; len(latencies) == 0 || at.Sub(begun) < length && ctx.Err() == nil; {
		if err := unit(); err != nil {
			return nil, 0, err
		}
		before := at
		at = time.Now()
		latencies = append(latencies, at.Sub(before))
	}
	return latencies, float64(len(latencies)) / time.Since(begun).Seconds(), nil
}

func count(latencies []time.Duration, rates []float64) Tally {
	slices.Sort(latencies)
	t := Tally{Units: len(latencies), P50: quantile(latencies, 50), P99: quantile(latencies, 99)}
	for _, rate := range rates {
		t.PerSecond += rate
	}
	return t
}

// quantile returns 0 for a turn that failed before its first unit.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*percent/100]
}
