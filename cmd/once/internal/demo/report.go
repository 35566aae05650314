package demo

import (
	"fmt"
	"slices"
	"strings"
)

// Report is what the demo counted.
type Report struct {
	Orders    int      `json:"orders"` // orders to place on each side; 0: as many as fit into the time
	Seed      uint64   `json:"seed"`
	Scenario  string   `json:"scenario,omitempty"`
	Seconds   float64  `json:"seconds"`
	Without   Side     `json:"without"`
	With      Side     `json:"with"`
	Windows   []Result `json:"windows"` // in the order of the run
	Directory string   `json:"directory,omitempty"`
}

// Side is the result of one service.
type Side struct {
	Orders     int `json:"orders"`     // placed
	Answered   int `json:"answered"`   // confirmed to the customer
	Effects    int `json:"effects"`    // charges by the provider; there should be one per order
	Duplicated int `json:"duplicated"` // orders, charges, points and letters beyond one per order
	Lost       int `json:"lost"`       // confirmed orders without their row, charge, points or letter
	Parked     int `json:"parked"`     // letters that wait for a person, because nobody knows whether they were sent

	DuplicateOrders  int   `json:"duplicate_orders"`
	DuplicateCharges int   `json:"duplicate_charges"`
	DuplicatePoints  int   `json:"duplicate_points"`
	DuplicateLetters int   `json:"duplicate_letters"`
	OverchargedCents int64 `json:"overcharged_cents"`

	Deliveries int `json:"deliveries"` // deliveries of messages to consumers
	Crashes    int `json:"crashes"`    // killed processes
	Outages    int `json:"outages"`    // outages of the broker

	news string
}

// Result is the result of the orders in one window.
type Result struct {
	Scenario string `json:"scenario"` // or "everything": all windows at once
	Without  Tally  `json:"without"`
	With     Tally  `json:"with"`
}

// Tally counts orders.
type Tally struct {
	Orders  int `json:"orders"`
	Doubled int `json:"doubled"`
	Lost    int `json:"lost"`
	Parked  int `json:"parked"`
}

// News is the latest event on this side.
func (s Side) News() string { return s.news }

// Right reports whether each order was placed, charged and credited exactly
// once, with at most one letter.
func (s Side) Right() bool {
	return s.Answered == s.Orders && s.Effects == s.Orders && s.Duplicated == 0 && s.Lost == 0
}

// Right reports whether the protected side is right.
func (r Report) Right() bool { return r.With.Right() }

func results(without, with map[string]*Tally) (found []Result) {
	names := []string{}
	for _, w := range Windows {
		names = append(names, w.Name)
	}
	for _, name := range append(names, everything) {
		r := Result{Scenario: name}
		if t := without[name]; t != nil {
			r.Without = *t
		}
		if t := with[name]; t != nil {
			r.With = *t
		}
		if r.Without.Orders+r.With.Orders > 0 {
			found = append(found, r)
		}
	}
	return found
}

// Verdict explains the numbers.
func (r Report) Verdict() string {
	return "By hand:   " + r.Without.verdict() + r.luck() + "\nWith once: " + r.With.verdict()
}

// luck explains a side by hand that happened to have no fault.
func (r Report) luck() string {
	switch {
	case !r.Without.Right():
		return ""
	case slices.Contains(survived, r.Scenario):
		return " In this scenario, checking first is enough."
	}
	return fmt.Sprintf(" No fault hit its gaps with --seed %d: try a longer run.", r.Seed)
}

func (s Side) verdict() string {
	if s.Right() {
		text := fmt.Sprintf("%s, %s, all points correct, no duplicate letters.", many(s.Orders, "order"), many(s.Effects, "charge"))
		switch {
		case s.Parked == 1:
			text += " 1 letter is parked: whether it was sent is unknown, so a person decides."
		case s.Parked > 1:
			text += fmt.Sprintf(" %d letters are parked: whether they were sent is unknown, so a person decides.", s.Parked)
		}
		return text
	}
	var faults []string
	if s.DuplicateCharges > 0 {
		faults = append(faults, fmt.Sprintf("%s too many, customers overpaid %d.%02d",
			many(s.DuplicateCharges, "charge"), s.OverchargedCents/100, s.OverchargedCents%100))
	}
	for _, f := range []struct {
		n    int
		noun string
	}{{s.DuplicateOrders, "order"}, {s.DuplicateLetters, "letter"}} {
		if f.n > 0 {
			faults = append(faults, many(f.n, f.noun)+" too many")
		}
	}
	if s.DuplicatePoints > 0 {
		faults = append(faults, "points added twice for "+many(s.DuplicatePoints, "order"))
	}
	if s.Lost > 0 {
		faults = append(faults, many(s.Lost, "order")+" acknowledged but not completed")
	}
	if len(faults) == 0 {
		faults = append(faults, fmt.Sprintf("%s for %s", many(s.Effects, "charge"), many(s.Orders, "order")))
	}
	return strings.Join(faults, "; ") + "."
}

func many(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
