package demo

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// all draws a whole run.
func all(o Options) (phases []phase, orders []Order) {
	s := newSchedule(o)
	for p := s.next(); len(p.orders) > 0; p = s.next() {
		phases = append(phases, p)
		for _, group := range p.orders {
			orders = append(orders, group...)
		}
	}
	return phases, orders
}

func TestScheduleFollowsSeed(t *testing.T) {
	_, one := all(Options{Seed: 1, Orders: 200})
	_, again := all(Options{Seed: 1, Orders: 200})
	_, other := all(Options{Seed: 2, Orders: 200})
	if !reflect.DeepEqual(one, again) {
		t.Error("the same seed gave two schedules")
	}
	if reflect.DeepEqual(one, other) {
		t.Error("two seeds gave the same schedule")
	}
}

func TestScheduleSize(t *testing.T) {
	for n := 1; n <= 300; n++ {
		for _, scenario := range []string{"", outage, afterCharge} {
			_, orders := all(Options{Seed: uint64(n), Orders: n, Scenario: scenario})
			ids := map[string]bool{}
			for _, o := range orders {
				ids[o.ID+o.Customer] = true
				if o.Cents <= 0 || scenario != "" && o.Window != scenario {
					t.Fatalf("%q: %+v", scenario, o)
				}
			}
			if len(ids) != n {
				t.Fatalf("%q: %d orders asked for, %d made", scenario, n, len(ids))
			}
		}
	}
}

func TestScheduleHasEveryWindow(t *testing.T) {
	phases, _ := all(Options{Seed: 1, Orders: 150})
	if len(phases) != len(Windows)+1 || phases[len(Windows)].name != everything {
		t.Fatalf("%d phases, the last of which is %q", len(phases), phases[len(phases)-1].name)
	}
	for i, w := range Windows {
		for _, group := range phases[i].orders {
			if phases[i].name != w.Name || group[0].Window != w.Name {
				t.Errorf("phase %d is %q with %q, want %q", i, phases[i].name, group[0].Window, w.Name)
			}
		}
	}
	windows := map[string]int{}
	_, orders := all(Options{Seed: 1, Orders: 5000})
	for _, o := range orders {
		windows[o.Window]++
	}
	for _, w := range Windows {
		if n := windows[w.Name]; n < 100 {
			t.Errorf("%s comes %d times in 5,000", w.Name, n)
		}
	}
	if n := windows[undisturbed]; n < 1000 {
		t.Errorf("nothing is done to only %d", n)
	}
}

func TestOrdersOfAnOutageComeTogether(t *testing.T) {
	phases, _ := all(Options{Seed: 1, Orders: 12, Scenario: outage})
	var sizes []int
	for _, group := range phases[0].orders {
		sizes = append(sizes, len(group))
	}
	if !reflect.DeepEqual(sizes, []int{outageSize, outageSize, 2}) {
		t.Errorf("12 orders come in outages of %v", sizes)
	}
}

func TestScheduleEndsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(Options{Seed: 1, Duration: time.Minute})
		rounds := 0
		for range 3 * (len(Windows) + 1) {
			if p := s.next(); p.name == everything && len(p.orders) > 0 {
				rounds++
			}
		}
		if rounds != 3 {
			t.Errorf("everything was done %d times in three rounds", rounds)
		}
		time.Sleep(time.Minute)
		if p := s.next(); len(p.orders) > 0 {
			t.Errorf("orders after the end: %+v", p)
		}
		s = newSchedule(Options{Seed: 1, Duration: time.Nanosecond})
		time.Sleep(time.Second)
		if first, second := s.next(), s.next(); len(first.orders) == 0 || len(second.orders) > 0 {
			t.Errorf("the phases of a moment have %d and %d orders, want some and none", len(first.orders), len(second.orders))
		}
	})
}
