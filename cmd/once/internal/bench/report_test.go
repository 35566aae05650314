package bench

import (
	"testing"
	"time"
)

func TestCostIsTheMedianOfTheRounds(t *testing.T) {
	turn := func(s *side, n int, elapsed time.Duration) {
		w := worker{}
		for i := range n {
			w.took = append(w.took, time.Duration(n-i)*time.Millisecond)
		}
		s.add([]worker{w}, elapsed)
	}
	bare, guarded := &side{name: "bare"}, &side{name: "dotx-new"}
	for _, n := range []int{100, 100, 1000, 100} { // in the third round, the machine was quick for one of them only
		turn(bare, n, time.Second)
		turn(guarded, 50, time.Second)
	}
	got := guarded.against(bare)
	if got.Cost != 2 || got.Count != 200 || got.PerSecond != 50 {
		t.Errorf("got %+v", got)
	}
	if got.P50 != 25*time.Millisecond || got.P95 != 48*time.Millisecond || got.P99 != 50*time.Millisecond {
		t.Errorf("quantiles of 4 times 1 to 50 ms: %v, %v, %v", got.P50, got.P95, got.P99)
	}
	if got := bare.against(bare).Cost; got != 1 {
		t.Errorf("bare against itself costs %v", got)
	}
}

func TestRoundsAreShortAndEnough(t *testing.T) {
	for length, want := range map[time.Duration]int{100 * time.Millisecond: 5, 10 * time.Second: 20, 2600 * time.Millisecond: 6} {
		if got := (Options{Length: length}).Rounds(); got != want {
			t.Errorf("%v: %d rounds, want %d", length, got, want)
		}
	}
}
