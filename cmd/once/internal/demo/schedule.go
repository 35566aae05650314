package demo

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Order is the body of a request and of a message.
type Order struct {
	ID       string
	Customer string // of this order only, so that the points tell how often it was handled
	Cents    int64
	Fate     string // what the demo does to it: the name of a window, or nothing
}

// phase is a part of a run that is over before the next one begins, so that what is done in one changes nothing in another.
type phase struct {
	name   string      // of a window, or everything
	orders []([]Order) // in their order; those in one slice are placed together
}

// everything is the phase in which all windows take turns, and processes are killed with whatever they have in hand.
const everything = "everything"

const (
	windowOrders = 5  // in the phase of a window
	mixedOrders  = 85 // in that of everything, when a run goes on by the clock
	calm         = 30 // of a hundred orders nothing is done to, in the phase of everything
	outageSize   = 5  // orders that are placed in one outage of the broker
)

// schedule draws orders and their fates: the same ones for both sides.
type schedule struct {
	dice     *rand.Rand
	scenario string
	orders   int       // in all
	left     int       // of them; negative: until the end
	end      time.Time // if the run goes on by the clock
	made     int
	phases   int
}

func newSchedule(o Options) *schedule {
	s := &schedule{dice: rand.New(rand.NewPCG(o.Seed, 0)), scenario: o.Scenario, orders: o.Orders, left: o.Orders}
	if o.Duration > 0 {
		s.left, s.end = -1, time.Now().Add(o.Duration)
	}
	return s
}

// next is the next phase; it has no orders if there is none. First comes each window by itself, then everything, and so
// on while the clock allows it; but the first phase does not depend on how slow the machine is.
func (s *schedule) next() phase {
	turn := s.phases % (len(Windows) + 1)
	s.phases++
	p := phase{name: everything}
	size := s.left
	switch {
	case s.left == 0 || s.left < 0 && s.phases > 1 && !time.Now().Before(s.end):
		return phase{}
	case s.scenario != "":
		p.name = s.scenario
		if s.left < 0 {
			size = windowOrders
		}
	case turn < len(Windows):
		p.name = Windows[turn].Name
		if size = windowOrders; s.left > 0 { // half of them, at most, and one at least
			size = min(max(s.orders/(2*len(Windows)), 1), windowOrders, s.left)
		}
	case s.left < 0:
		size = mixedOrders
	}
	if s.left > 0 {
		s.left -= size
	}
	for size > 0 {
		group := s.group(p.name, size)
		size -= len(group)
		p.orders = append(p.orders, group)
	}
	return p
}

// group is the next order of a phase, or those of an outage.
func (s *schedule) group(phase string, limit int) (orders []Order) {
	fate, size := phase, 1
	if phase == everything {
		fate = pick(s.dice.IntN(100))
	}
	if fate == outage {
		size = min(outageSize, limit)
	}
	for range size {
		s.made++
		orders = append(orders, Order{
			ID:       fmt.Sprintf("order-%d", s.made),
			Customer: fmt.Sprintf("customer-%d", s.made),
			Cents:    100 + s.dice.Int64N(9900),
			Fate:     fate,
		})
	}
	return orders
}

// pick is the fate that belongs to a number below 100. All windows are equally likely, but for an outage, which takes
// several orders.
func pick(n int) string {
	const share = (100 - calm) / 13
	if n -= calm; n < 0 || n/share >= len(Windows) {
		return undisturbed
	}
	w := Windows[n/share]
	if w.Name == outage && n%share > 0 {
		return undisturbed
	}
	return w.Name
}
