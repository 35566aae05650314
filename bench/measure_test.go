package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
)

func TestSpreadInterpolates(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1.75, 3.25}},
		{[]float64{5, 4, 3, 2, 1}, spread{3, 2, 4}},
	} {
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("spreadOf(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

// The machine is ten times slower in the second round, which must not affect
// the cost.
func TestCostsAreOfTheSameRound(t *testing.T) {
	slow := func(perSecond float64) variant {
		speed := 1.0
		return variant{"", func(context.Context, int, time.Duration) (turn.Tally, error) {
			speed /= 10
			return turn.Tally{Units: 1, PerSecond: perSecond * speed, P50: 1, P99: 1}, nil
		}}
	}
	results, err := measure(context.Background(), contest{variants: []variant{slow(1000), slow(500)}}, 1, 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	if cost := results[1].Cost; cost.Low < 1.99 || cost.High > 2.01 {
		t.Errorf("half as fast in every round costs %v, want 2", cost)
	}
	if len(results[1].Rounds) != 3 {
		t.Errorf("%d rounds are kept, want 3: the first one only warms up", len(results[1].Rounds))
	}
}

func TestFailingVariantIsTakenOut(t *testing.T) {
	fine := repeated("fine", func(context.Context) error { return nil })
	fails := repeated("fails", func(context.Context) error { return errors.New("broken") })
	results, err := measure(context.Background(), contest{variants: []variant{fine, fails}}, 1, 1, time.Millisecond)
	if err != nil || results[0].Failed != "" || results[1].Failed != "broken" {
		t.Errorf("got %+v, %v: want only the second variant failed", results, err)
	}
	var r report
	r.Results = results
	if r.failures() == nil {
		t.Error("a run with a failed variant reports no error")
	}
	if _, err := measure(context.Background(), contest{variants: []variant{fails, fine}}, 1, 1, time.Millisecond); err == nil {
		t.Error("a contest whose first variant failed has results")
	}
}
