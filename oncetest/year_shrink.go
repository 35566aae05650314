//go:build go1.25

package oncetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/internal/sim"
)

// shrinkDays is how many days are lived in search of a smaller day.
const shrinkDays = 250

// excerpt is a part of a year: some days, and what may happen on the last one.
type excerpt struct {
	first, last int
	without     map[string]bool // programs that are left out on the last day
	only        map[string]bool // faults of the last day, by ID; nil: all
}

// with returns the excerpt with other faults.
func (e excerpt) with(faults []sim.Fault) excerpt {
	e.only = make(map[string]bool)
	for _, f := range faults {
		e.only[f.ID] = true
	}
	return e
}

// leaveOut returns the excerpt without programs, too.
func (e excerpt) leaveOut(programs []string) excerpt {
	e.without = maps.Clone(e.without)
	if e.without == nil {
		e.without = make(map[string]bool)
	}
	for _, name := range programs {
		e.without[name] = true
	}
	return e
}

// shrinker looks for less that breaks the same law. It is used in the bubble of the
// year, because a goroutine of the service that never ends would end the test with
// the bubble.
type shrinker struct {
	t      *testing.T
	year   *year
	law    sim.Law
	best   excerpt
	day    *day
	result *sim.Result
	left   int // days
	found  bool
}

// shrink looks for a smaller day that breaks the law that a day has broken first.
func (y *year) shrink(t *testing.T, d *day, r *sim.Result) *shrinker {
	s := &shrinker{t: t, year: y, law: r.Broken[0].Law, best: excerpt{first: 1, last: d.number},
		day: d, result: r, left: shrinkDays}
	if s.law == lawRunStays { // each try would leave goroutines
		return s
	}
	for _, before := range []int{0, 0, 1, recent, 5 * recent} { // a day may differ when it is played again
		if s.try(excerpt{first: max(1, d.number-before), last: d.number}) {
			break
		}
	}
	if !s.found {
		return s
	}
	s.try(s.best.with(nil))
	fewer(s, s.programs, func(some []string) excerpt { return s.best.leaveOut(some) })
	fewer(s, s.faults, func(some []sim.Fault) excerpt { return s.best.with(without(s.faults(), some)) })
	fewer(s, s.programs, func(some []string) excerpt { return s.best.leaveOut(some) })
	return s
}

func (s *shrinker) programs() []string  { return s.result.Started }
func (s *shrinker) faults() []sim.Fault { return s.result.Faults }

// try keeps an excerpt in which the law is still broken.
func (s *shrinker) try(e excerpt) bool {
	if s.left -= e.last - e.first + 1; s.left < 0 {
		return false
	}
	y := newYear(s.year.Service)
	y.effects, y.progress = s.year.effects, s.year.progress
	for n := e.first; n <= e.last; n++ {
		d := y.newDay(n)
		if n == e.last {
			d.world.Without, d.world.Only = e.without, e.only
		}
		sim.SeedRandom(s.t, d.world.Seed)
		r := d.live()
		if len(r.Broken) == 0 {
			continue
		}
		if n != e.last || r.Broken[0].Law != s.law {
			return false
		}
		s.best, s.day, s.result, s.found = e, d, r, true
		return true
	}
	return false
}

// fewer leaves out as many of all as it can: first half of them, at last one at a
// time.
func fewer[T any](s *shrinker, all func() []T, leaving func(some []T) excerpt) {
	for size := max(len(all())/2, 1); ; size /= 2 {
		for at := 0; at < len(all()); {
			if some := all()[at:min(at+size, len(all()))]; !s.try(leaving(slices.Clone(some))) {
				at += size
			}
		}
		if size <= 1 {
			return
		}
	}
}

func without(all, some []sim.Fault) []sim.Fault {
	return slices.DeleteFunc(slices.Clone(all), func(f sim.Fault) bool { return slices.Contains(some, f) })
}

// size says how small the day has become.
func (s *shrinker) size() string {
	customers, instances, decisions := 0, 0, 0
	for _, name := range s.result.Started {
		switch {
		case strings.HasPrefix(name, "customer"):
			customers++
		case isInstance(name):
			instances++
		}
	}
	for _, f := range s.result.Faults {
		if strings.HasPrefix(f.ID, "person") {
			decisions++
		}
	}
	people, days := "", ""
	if decisions > 0 {
		people = ", " + counted(decisions, "decision") + " of a person"
	}
	if n := s.best.last - s.best.first; n > 0 {
		days = fmt.Sprintf(", after %s", counted(n, "day"))
	}
	return fmt.Sprintf("%s, %s%s and %s%s", counted(customers, "customer"), counted(instances, "instance"), people,
		counted(len(s.result.Faults)-decisions, "fault"), days)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
