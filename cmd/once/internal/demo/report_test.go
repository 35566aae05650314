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
		{Side{Effects: 10}, "10 orders, 10 charges, every balance exact.", true},
		{Side{Effects: 11, Duplicated: 1, DuplicateCharges: 1, OverchargedCents: 4909}, "1 charge too many, customers are out 49.09.", false},
		{Side{Effects: 10, Duplicated: 2, DuplicateBookings: 2}, "2 bookings too many.", false},
		{Side{Effects: 9, Lost: 1}, "1 order acknowledged but not carried out.", false},
		{Side{Effects: 9}, "9 charges for 10 orders.", false},
	} {
		if got := test.side.verdict(10); got != test.words {
			t.Errorf("%+v: %q, want %q", test.side, got, test.words)
		}
		if r := (Report{Orders: 10, With: test.side}); r.Right() != test.right {
			t.Errorf("%+v: right is %v", test.side, r.Right())
		}
	}
}

// A hand-written side that got away with it is not called wrong.
func TestVerdictOnLuck(t *testing.T) {
	r := Report{Orders: 10, Seed: 4, Without: Side{Effects: 10}, With: Side{Effects: 10}}
	if got := r.Verdict(); !strings.Contains(got, "Nothing hit its gaps with --seed 4") {
		t.Errorf("got %q", got)
	}
	r.Without = Side{Effects: 11, Duplicated: 1, DuplicateCharges: 1}
	if got := r.Verdict(); strings.Contains(got, "Nothing hit") {
		t.Errorf("got %q", got)
	}
}
