package demo

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Order is the body of a message.
type Order struct {
	ID       string
	Customer string // of this order only, so that the balance tells how often it was booked
	Cents    int64
}

// point is a place where a worker can be told to wait for its death.
type point string

const (
	beforeCharge  point = "before the charge"
	afterCharge   point = "after the charge, before anything is recorded"
	inTransaction point = "in the transaction, before its commit"
	beforeAck     point = "after the commit, before the ack" // also for who was told another and did not pass it
)

// fate is what becomes of one delivery. The zero fate is a delivery that is handled and acknowledged.
type fate struct {
	dieAt   point
	loseAck bool
}

// message is delivered again until its fates are used up.
type message struct {
	order Order
	fates []fate
}

// schedule is what happens on both sides: which messages come, in which order, and what becomes of them.
type schedule struct {
	orders     []Order
	groups     [][]message // two in a group are delivered at the same moment, to two workers
	deliveries int
	crashes    int
}

// How often something goes wrong, and how far behind its message a late duplicate may come.
const (
	raceShare  = 0.15
	againShare = 0.15
	crashShare = 0.20
	ackShare   = 0.08
	againSpan  = 30
)

func newSchedule(o Options) *schedule {
	d := &dice{
		Rand: rand.New(rand.NewPCG(o.Seed, 0)),
		room: cmp.Or(o.Deliveries, math.MaxInt),
	}
	for n := 1; n <= cmp.Or(o.Orders, math.MaxInt) && d.room > 0; n++ {
		d.order(n)
	}
	slices.SortStableFunc(d.placed, func(a, b placed) int { return a.at - b.at })
	for _, p := range d.placed {
		d.schedule.groups = append(d.schedule.groups, p.group)
	}
	return &d.schedule
}

// dice draw a schedule.
type dice struct {
	*rand.Rand
	room     int // deliveries that may still be added
	placed   []placed
	schedule schedule
}

type placed struct {
	at    int
	group []message
}

// order draws an order and everything that is delivered of it.
func (d *dice) order(n int) {
	order := Order{
		ID:       fmt.Sprintf("order-%d", n),
		Customer: fmt.Sprintf("customer-%d", n),
		Cents:    100 + d.Int64N(9900),
	}
	d.schedule.orders = append(d.schedule.orders, order)
	group := []message{d.message(order)}
	if d.Float64() < raceShare && d.room > 0 {
		group = append(group, d.message(order))
	}
	d.placed = append(d.placed, placed{n, group})
	if d.Float64() < againShare && d.room > 0 {
		d.placed = append(d.placed, placed{n + 1 + d.IntN(againSpan), []message{d.message(order)}})
	}
}

// message draws fates until a delivery is acknowledged, or the room for deliveries ends.
func (d *dice) message(order Order) message {
	m := message{order: order}
	for again := true; again; {
		f := fate{}
		if d.room > 1 {
			f = d.fate()
		}
		m.fates = append(m.fates, f)
		d.room--
		d.schedule.deliveries++
		if f.dieAt != "" {
			d.schedule.crashes++
		}
		again = f != fate{}
	}
	return m
}

func (d *dice) fate() fate {
	switch x := d.Float64(); {
	case x < crashShare:
		points := [...]point{beforeCharge, afterCharge, inTransaction, beforeAck}
		return fate{dieAt: points[d.IntN(len(points))]}
	case x < crashShare+ackShare:
		return fate{loseAck: true}
	default:
		return fate{}
	}
}
