package pgstore

import "testing"

func TestLossesAreHighAboveOneInEight(t *testing.T) {
	var l lossRate
	after := func(n int, lostOneIn int) bool {
		for i := range n {
			l.count(lostOneIn > 0 && i%lostOneIn == 0)
		}
		return l.high()
	}
	if l.high() {
		t.Error("high before anything was lost")
	}
	if after(1000, 50) {
		t.Error("high with one in fifty lost")
	}
	if !after(100, 2) {
		t.Error("low with every other one lost")
	}
	if !after(1000, 1) || l.lost.Load() > allLost {
		t.Errorf("%d of %d after nothing but losses", l.lost.Load(), allLost)
	}
	if after(200, 0) || l.lost.Load() < 0 {
		t.Errorf("%d of %d after nothing was lost for long", l.lost.Load(), allLost)
	}
}
