package lossrate

import "testing"

func TestARateIsHighAboveOneInEight(t *testing.T) {
	var r Rate
	after := func(n int, lostOneIn int) bool {
		for i := range n {
			r.Count(lostOneIn > 0 && i%lostOneIn == 0)
		}
		return r.High()
	}
	if r.High() {
		t.Error("high before anything was lost")
	}
	if after(1000, 50) {
		t.Error("high with one in fifty lost")
	}
	if !after(100, 2) {
		t.Error("low with every other one lost")
	}
	if !after(1000, 1) || r.lost.Load() > all {
		t.Errorf("%d of %d after nothing but losses", r.lost.Load(), all)
	}
	if after(200, 0) || r.lost.Load() < 0 {
		t.Errorf("%d of %d after nothing was lost for long", r.lost.Load(), all)
	}
}
