package bench

import (
	"context"
	"math"
	"slices"
	"time"
)

// Report has the results of a measurement.
type Report struct {
	Rounds    int
	Sides     []Side // the bare transaction first
	Isolation string // the default of PostgreSQL
	Keys      Keys
}

// Side is one variant.
type Side struct {
	Name          string
	Workers       int
	Count         int
	PerSecond     float64
	P50, P95, P99 time.Duration
	Cost          float64 // median over the rounds of its time divided by that of the bare transaction
}

// side collects the results of a Side.
type side struct {
	name    string
	workers int // the first of them
	do      func(context.Context, *worker) error
	took    []time.Duration
	elapsed time.Duration
	rates   []float64 // per second, for each round
}

// add adds the result of a turn.
func (s *side) add(workers []worker, elapsed time.Duration) {
	n := 0
	for _, w := range workers {
		s.took = append(s.took, w.took...)
		n += len(w.took)
	}
	s.elapsed += elapsed
	s.rates = append(s.rates, float64(n)/elapsed.Seconds())
}

// against compares a side with the bare one round by round, because other load
// on the machine affects both.
func (s *side) against(bare *side) Side {
	ratios := make([]float64, len(s.rates))
	for i, rate := range s.rates {
		ratios[i] = bare.rates[i] / rate
	}
	slices.Sort(ratios)
	slices.Sort(s.took)
	n := len(ratios)
	return Side{Name: s.name, Workers: s.workers, Count: len(s.took), PerSecond: float64(len(s.took)) / s.elapsed.Seconds(),
		P50: quantile(s.took, 0.5), P95: quantile(s.took, 0.95), P99: quantile(s.took, 0.99),
		Cost: (ratios[(n-1)/2] + ratios[n/2]) / 2}
}

// quantile returns the quantile of sorted times.
func quantile(sorted []time.Duration, part float64) time.Duration {
	return sorted[max(int(math.Ceil(part*float64(len(sorted))))-1, 0)]
}
