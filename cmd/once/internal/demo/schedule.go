package demo

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Order is the body of a request and of a message.
type Order struct {
	ID       string
	Customer string // one per order, so that the points count how often it was handled
	Cents    int64
	Window   string // the name of a window, or ""
}

// phase is a part of a run. It ends before the next one begins, so that phases
// do not affect each other.
type phase struct {
	name   string      // of a window, or everything
	orders []([]Order) // in order; those in one slice are placed together
}

// everything is the phase with all windows, in which processes are killed in
// the middle of other work.
const everything = "everything"

const (
	windowOrders = 5  // per phase of a window
	mixedOrders  = 85 // in the phase everything, if the run ends by the clock
	calm         = 30 // percentage of orders without a window in the phase everything
	outageSize   = 5  // orders placed in one outage of the broker
)

// schedule draws orders and their windows, the same for both sides.
type schedule struct {
	dice     *rand.Rand
	options  Options
	scenario string
	orders   int       // total
	left     int       // remaining; negative: until the end
	end      time.Time // if the run ends by the clock
	made     int
	phases   int
}

func newSchedule(o Options) *schedule {
	s := &schedule{options: o, dice: rand.New(rand.NewPCG(o.Seed, 0)), scenario: o.Scenario, orders: o.Orders, left: o.Orders}
	if o.Lasting != nil {
		s.left = -1
	}
	if o.Duration > 0 {
		s.left, s.end = -1, time.Now().Add(o.Duration)
	}
	return s
}

// next returns the next phase, which is empty at the end. First comes each
// window, then everything, repeatedly while the clock allows. The first phase
// does not depend on the speed of the machine.
func (s *schedule) next() phase {
	first := 0
	if s.options.Lasting != nil {
		first = len(Windows) - 1 // letters that are parked, for people to see
	}
	turn := (first + s.phases) % (len(Windows) + 1)
	s.phases++
	p := phase{name: everything}
	size := s.left
	switch {
	case s.left == 0 || s.left < 0 && s.phases > 1 && s.over():
		return phase{}
	case s.scenario != "":
		p.name = s.scenario
		if s.left < 0 {
			size = windowOrders
		}
	case turn < len(Windows):
		p.name = Windows[turn].Name
		if size = windowOrders; s.left > 0 { // at most half of them, and at least one
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

// over reports whether a run that ends by the clock, or that lasts, is to end.
func (s *schedule) over() bool {
	if s.options.Lasting != nil {
		return s.options.enough()
	}
	return !time.Now().Before(s.end)
}

// group returns the next order of a phase, or the orders of an outage.
func (s *schedule) group(phase string, limit int) (orders []Order) {
	window, size := phase, 1
	if phase == everything {
		window = pick(s.dice.IntN(100))
	}
	if window == outage {
		size = min(outageSize, limit)
		if s.options.Lasting != nil {
			size = min(awayOrders, limit)
		}
	}
	for range size {
		s.made++
		orders = append(orders, Order{
			ID:       fmt.Sprintf("order-%d", s.made),
			Customer: fmt.Sprintf("customer-%d", s.made),
			Cents:    100 + s.dice.Int64N(9900),
			Window:   window,
		})
	}
	return orders
}

// pick maps a number below 100 to a window. All are equally likely,
// except an outage, which takes several orders.
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
