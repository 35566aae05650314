package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
)

// result has the measurements of a variant. Costs are relative to the first
// variant of the contest in the same round.
type result struct {
	Stage     string  `json:"stage"`
	Load      string  `json:"load"`
	Unit      string  `json:"unit"`
	Variant   string  `json:"variant"`
	Cost      spread  `json:"cost"`       // time per unit
	P50Cost   spread  `json:"p50_cost"`   // median latency of a unit
	P99Cost   spread  `json:"p99_cost"`   // 99th percentile of the latency
	PerSecond float64 `json:"per_second"` // median over the rounds, like the next two
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Rounds    []round `json:"rounds"`
	Failed    string  `json:"failed,omitempty"` // why it was excluded

	latency bool // from the contest
}

// round is one turn of a variant.
type round struct {
	Units     int     `json:"units"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
}

// spread is a median with its quartiles.
type spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// measure runs all variants in turns, for some rounds and one warm-up round.
// Each round has an order of its own, because what a variant leaves behind, such
// as dirty pages, is paid for by the one after it.
func measure(ctx context.Context, c contest, workers, rounds int, length time.Duration) ([]result, error) {
	tallies := make([][]turn.Tally, len(c.variants))
	failed := make([]error, len(c.variants))
	for round := range rounds + 1 {
		if c.before != nil {
			if err := c.before(ctx); err != nil {
				return nil, err
			}
		}
		for _, i := range rand.Perm(len(c.variants)) {
			if failed[i] != nil {
				continue
			}
			tally, err := c.variants[i].turn(ctx, workers, length)
			if failed[i] = err; err == nil && round > 0 {
				tallies[i] = append(tallies[i], tally)
			}
		}
		if failed[0] != nil {
			return nil, fmt.Errorf("%s: %w", c.variants[0].name, failed[0])
		}
	}
	results := make([]result, len(c.variants))
	for i, v := range c.variants {
		results[i] = result{Variant: v.name, Unit: c.unit, latency: c.latency}
		if failed[i] != nil {
			results[i].Failed = failed[i].Error()
		} else {
			results[i].compare(tallies[0], tallies[i])
		}
	}
	return results, nil
}

func (r *result) compare(base, own []turn.Tally) {
	perUnit := func(t turn.Tally) float64 { return 1 / t.PerSecond }
	p50 := func(t turn.Tally) float64 { return milliseconds(t.P50) }
	p99 := func(t turn.Tally) float64 { return milliseconds(t.P99) }

	r.Cost, r.P50Cost, r.P99Cost = costs(base, own, perUnit), costs(base, own, p50), costs(base, own, p99)
	r.PerSecond = spreadOf(each(own, func(t turn.Tally) float64 { return t.PerSecond })).Median
	r.P50, r.P99 = spreadOf(each(own, p50)).Median, spreadOf(each(own, p99)).Median
	for _, t := range own {
		r.Rounds = append(r.Rounds, round{t.Units, t.PerSecond, p50(t), p99(t)})
	}
}

// costs compares turns of the same round.
func costs(base, own []turn.Tally, of func(turn.Tally) float64) spread {
	ratios := make([]float64, len(own))
	for i := range own {
		ratios[i] = of(own[i]) / of(base[i])
	}
	return spreadOf(ratios)
}

func each(tallies []turn.Tally, of func(turn.Tally) float64) []float64 {
	values := make([]float64, len(tallies))
	for i, t := range tallies {
		values[i] = of(t)
	}
	return values
}

func spreadOf(values []float64) spread {
	slices.Sort(values)
	return spread{quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75)}
}

// quantile interpolates between neighbouring values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	below := math.Floor(at)
	value := sorted[int(below)]
	if above := int(below) + 1; above < len(sorted) {
		value += (at - below) * (sorted[above] - value)
	}
	return value
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
