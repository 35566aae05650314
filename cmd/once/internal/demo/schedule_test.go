package demo

import (
	"reflect"
	"testing"
)

func TestScheduleFollowsSeed(t *testing.T) {
	one, again, other := newSchedule(Options{Seed: 1, Orders: 200}), newSchedule(Options{Seed: 1, Orders: 200}), newSchedule(Options{Seed: 2, Orders: 200})
	if !reflect.DeepEqual(one, again) {
		t.Error("the same seed gave two schedules")
	}
	if reflect.DeepEqual(one, other) {
		t.Error("two seeds gave the same schedule")
	}
}

func TestScheduleSize(t *testing.T) {
	for n := 1; n <= 300; n++ {
		if s := newSchedule(Options{Seed: uint64(n), Deliveries: n}); s.deliveries != n || count(s).deliveries != n {
			t.Fatalf("%d deliveries asked for, %d announced, %d made", n, s.deliveries, count(s).deliveries)
		}
		if s := newSchedule(Options{Seed: uint64(n), Orders: n}); len(s.orders) != n || len(count(s).orders) != n {
			t.Fatalf("%d orders asked for, %d announced, %d made", n, len(s.orders), len(count(s).orders))
		}
	}
}

func TestScheduleHasEveryFault(t *testing.T) {
	s := newSchedule(Options{Seed: 1, Orders: 300})
	c := count(s)
	if c.deliveries != s.deliveries || c.crashes != s.crashes {
		t.Errorf("announced %d deliveries and %d crashes, made %d and %d", s.deliveries, s.crashes, c.deliveries, c.crashes)
	}
	for _, p := range []point{beforeCharge, afterCharge, inTransaction, beforeAck} {
		if c.points[p] == 0 {
			t.Errorf("nobody dies %s", p)
		}
	}
	if c.races == 0 || c.late == 0 || c.lostAcks == 0 {
		t.Errorf("%d races, %d late duplicates, %d lost acks", c.races, c.late, c.lostAcks)
	}
}

func TestEveryMessageIsAcknowledged(t *testing.T) {
	for _, group := range newSchedule(Options{Seed: 5, Orders: 300}).groups {
		for _, m := range group {
			if last := m.fates[len(m.fates)-1]; last != (fate{}) {
				t.Errorf("%s ends with %+v", m.order.ID, last)
			}
		}
	}
}

type counted struct {
	orders                                     map[string]int
	points                                     map[point]int
	deliveries, crashes, races, late, lostAcks int
}

func count(s *schedule) counted {
	c := counted{orders: map[string]int{}, points: map[point]int{}}
	for _, group := range s.groups {
		if len(group) == 2 {
			c.races++
		}
		if c.orders[group[0].order.ID]++; c.orders[group[0].order.ID] > 1 {
			c.late++
		}
		for _, m := range group {
			for _, f := range m.fates {
				c.fate(f)
			}
		}
	}
	return c
}

func (c *counted) fate(f fate) {
	c.deliveries++
	if f.dieAt != "" {
		c.points[f.dieAt]++
		c.crashes++
	}
	if f.loseAck {
		c.lostAcks++
	}
}
