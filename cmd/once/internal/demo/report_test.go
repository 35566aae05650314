package demo

import (
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		side  Side
		words string
		right bool
	}{
		{Side{Effects: 10}, "10 orders, 10 charges, all points correct, no duplicate letters.", true},
		{Side{Effects: 10, Parked: 1}, "10 orders, 10 charges, all points correct, no duplicate letters. 1 letter is parked: whether it was sent is unknown, so a person decides.", true},
		{Side{Effects: 10, Parked: 2}, "10 orders, 10 charges, all points correct, no duplicate letters. 2 letters are parked: whether they were sent is unknown, so a person decides.", true},
		{Side{Effects: 11, Duplicated: 1, DuplicateCharges: 1, OverchargedCents: 4909}, "1 charge too many, customers overpaid 49.09.", false},
		{Side{Effects: 10, Duplicated: 4, DuplicateOrders: 1, DuplicateLetters: 2, DuplicatePoints: 1}, "1 order too many; 2 letters too many; points added twice for 1 order.", false},
		{Side{Effects: 9, Lost: 1}, "1 order acknowledged but not completed.", false},
		{Side{Effects: 9}, "9 charges for 10 orders.", false},
	} {
		test.side.Orders, test.side.Answered = 10, 10
		if got := test.side.verdict(); got != test.words {
			t.Errorf("%+v: %q, want %q", test.side, got, test.words)
		}
		if r := (Report{With: test.side}); r.Right() != test.right {
			t.Errorf("%+v: right is %v", test.side, r.Right())
		}
	}
	if (Side{Orders: 2, Answered: 1, Effects: 2}).Right() {
		t.Error("an order without an answer is right")
	}
}

// A side by hand that got away with it is not called wrong.
func TestVerdictOnLuck(t *testing.T) {
	right := Side{Orders: 10, Answered: 10, Effects: 10}
	r := Report{Seed: 4, Without: right, With: right}
	if got := r.Verdict(); !strings.Contains(got, "No fault hit its gaps with --seed 4") {
		t.Errorf("got %q", got)
	}
	r.Scenario = lostAck
	if got := r.Verdict(); !strings.Contains(got, "checking first is enough") {
		t.Errorf("got %q", got)
	}
	for _, r.Scenario = range []string{doubleClick, raced, afterCharge} {
		if got := r.Verdict(); strings.Contains(got, "is enough") || !strings.Contains(got, "No fault hit its gaps") {
			t.Errorf("%s: it was lucky, and got %q", r.Scenario, got)
		}
	}
	r.Without.Duplicated, r.Without.DuplicateCharges, r.Scenario = 1, 1, ""
	if got := r.Verdict(); strings.Contains(got, "Nothing hit") {
		t.Errorf("got %q", got)
	}
}

func TestResultsAreInTheOrderOfTheRun(t *testing.T) {
	got := results(map[string]*Tally{everything: {Orders: 3}, raced: {Orders: 1, Doubled: 1}, doubleClick: {Orders: 2}},
		map[string]*Tally{raced: {Orders: 1}, doubleClick: {Orders: 2, Parked: 1}})
	want := []Result{{doubleClick, Tally{Orders: 2}, Tally{Orders: 2, Parked: 1}},
		{raced, Tally{Orders: 1, Doubled: 1}, Tally{Orders: 1}}, {everything, Tally{Orders: 3}, Tally{}}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
