package demo

import (
	"fmt"
	"strings"
)

// Report is what the demo counted. Deliveries and Crashes are those of the schedule, for each side.
type Report struct {
	Orders     int     `json:"orders"`
	Deliveries int     `json:"deliveries"`
	Crashes    int     `json:"crashes"`
	Seed       uint64  `json:"seed"`
	Seconds    float64 `json:"seconds"`
	Without    Side    `json:"without"`
	With       Side    `json:"with"`
	Directory  string  `json:"directory,omitempty"`
}

// Side is what one handler did.
type Side struct {
	Effects    int `json:"effects"`    // charges that the provider made; there should be one per order
	Duplicated int `json:"duplicated"` // charges and bookings beyond one per order
	Lost       int `json:"lost"`       // acknowledged orders without a charge, a row or their amount in the balance

	DuplicateCharges  int   `json:"duplicate_charges"`
	DuplicateBookings int   `json:"duplicate_bookings"`
	OverchargedCents  int64 `json:"overcharged_cents"`

	Deliveries int `json:"deliveries"` // those of the schedule, and those after the handler refused a message
	Crashes    int `json:"crashes"`
}

// Right reports whether each of so many orders was charged once and booked once, at the end.
func (s Side) Right(orders int) bool {
	return s.Effects == orders && s.Duplicated == 0 && s.Lost == 0
}

// Right reports whether the protected side is right.
func (r Report) Right() bool { return r.With.Right(r.Orders) }

// Verdict says in plain words what the numbers mean.
func (r Report) Verdict() string {
	return strings.Join([]string{
		"Without once: " + r.Without.verdict(r.Orders) + r.luck(),
		"With once:    " + r.With.verdict(r.Orders),
	}, "\n")
}

// luck explains a hand-written side without a fault.
func (r Report) luck() string {
	if !r.Without.Right(r.Orders) {
		return ""
	}
	return fmt.Sprintf(" Nothing hit its gaps with --seed %d: try more --orders.", r.Seed)
}

func (s Side) verdict(orders int) string {
	if s.Right(orders) {
		return fmt.Sprintf("%s, %s, every balance exact.", many(orders, "order"), many(s.Effects, "charge"))
	}
	var faults []string
	if s.DuplicateCharges > 0 {
		faults = append(faults, fmt.Sprintf("%s too many, customers are out %d.%02d",
			many(s.DuplicateCharges, "charge"), s.OverchargedCents/100, s.OverchargedCents%100))
	}
	if s.DuplicateBookings > 0 {
		faults = append(faults, many(s.DuplicateBookings, "booking")+" too many")
	}
	if s.Lost > 0 {
		faults = append(faults, many(s.Lost, "order")+" acknowledged but not carried out")
	}
	if len(faults) == 0 {
		faults = append(faults, fmt.Sprintf("%s for %s", many(s.Effects, "charge"), many(orders, "order")))
	}
	return strings.Join(faults, "; ") + "."
}

func many(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
