package demo

import (
	"fmt"
	"slices"
	"strings"
)

// Report is what the demo counted.
type Report struct {
	Orders    int      `json:"orders"` // that were to be placed on each side; 0: as many as fit into the time
	Seed      uint64   `json:"seed"`
	Scenario  string   `json:"scenario,omitempty"`
	Seconds   float64  `json:"seconds"`
	Without   Side     `json:"without"`
	With      Side     `json:"with"`
	Windows   []Result `json:"windows"` // in the order of the run
	Directory string   `json:"directory,omitempty"`
}

// Side is what one service did.
type Side struct {
	Orders     int `json:"orders"`     // that were placed
	Answered   int `json:"answered"`   // of which the customer was told so
	Effects    int `json:"effects"`    // charges that the provider made; there should be one per order
	Duplicated int `json:"duplicated"` // orders, charges, points and letters beyond one per order
	Lost       int `json:"lost"`       // answered orders without their row, charge, points or letter
	Parked     int `json:"parked"`     // letters that wait for a person, because nobody knows whether they were sent

	DuplicateOrders  int   `json:"duplicate_orders"`
	DuplicateCharges int   `json:"duplicate_charges"`
	DuplicatePoints  int   `json:"duplicate_points"`
	DuplicateLetters int   `json:"duplicate_letters"`
	OverchargedCents int64 `json:"overcharged_cents"`

	Deliveries int `json:"deliveries"` // of messages to consumers
	Crashes    int `json:"crashes"`    // processes that were killed
	Outages    int `json:"outages"`    // of the broker

	news string
}

// Result is what became of the orders in one window.
type Result struct {
	Scenario string `json:"scenario"` // or "everything": all of them at once
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

// News is what was done last on this side.
func (s Side) News() string { return s.news }

// Right reports whether each order was placed, charged and credited once, and has one letter at most, at the end.
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

// Verdict says in plain words what the numbers mean.
func (r Report) Verdict() string {
	return "By hand:   " + r.Without.verdict() + r.luck() + "\nWith once: " + r.With.verdict()
}

// luck explains a side by hand without a fault.
func (r Report) luck() string {
	switch {
	case !r.Without.Right():
		return ""
	case slices.Contains(survived, r.Scenario):
		return " What is done here, looking first survives."
	}
	return fmt.Sprintf(" Nothing hit its gaps with --seed %d: try a longer run.", r.Seed)
}

func (s Side) verdict() string {
	if s.Right() {
		text := fmt.Sprintf("%s, %s, all points exact, no letter twice.", many(s.Orders, "order"), many(s.Effects, "charge"))
		switch {
		case s.Parked == 1:
			text += " 1 letter parked: nobody can know whether it was sent, so a person decides."
		case s.Parked > 1:
			text += fmt.Sprintf(" %d letters parked: nobody can know whether they were sent, so a person decides.", s.Parked)
		}
		return text
	}
	var faults []string
	if s.DuplicateCharges > 0 {
		faults = append(faults, fmt.Sprintf("%s too many, customers are out %d.%02d",
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
		faults = append(faults, many(s.Lost, "order")+" acknowledged but not carried out")
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
