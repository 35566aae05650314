package models

import (
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// Lane checks that each change of the messages in an outbox, and of its lanes, is one
// that the model lanes.pml makes, and that the model begins each call. A write of
// several messages, and a call with several, is as many changes.
//
// It looks at one change after the other: that the model makes all of them in this
// order is not checked. Nor is what a relay knows of the leases, of what is held, and
// of what people have decided. An attempt that leaves its message where it was
// changes nothing that the model has. What is delayed is left out until it is due, and
// what was published and is kept is gone.
type Lane struct {
	leases    map[int]laneLease
	rows      map[int64]store.Outgoing // those that are pending, held or stuck, by Seq
	published map[string]bool          // by ID
	seen      map[string]bool
}

// laneLease is the lease of a lane as a store has it.
type laneLease struct {
	relay [16]byte
	by    string // the process of the relay
	until time.Time
}

// NewLane returns what is checked of an outbox in which nothing was written.
func NewLane() *Lane {
	return &Lane{leases: make(map[int]laneLease), rows: make(map[int64]store.Outgoing),
		published: make(map[string]bool), seen: make(map[string]bool)}
}

// Leased returns an error if the model does not make the changes of a call that
// leases lanes for a relay. after has all lanes after it.
func (l *Lane) Leased(by string, relay [16]byte, lanes []int, after store.Leases, now time.Time) error {
	var errs []error
	for _, lane := range lanes {
		was := l.leases[lane]
		if after.Lanes[lane].Relay != relay {
			continue // another one has it
		}
		step := laneStep{verb: leasesLane}
		lapsed := !now.Before(was.until)
		switch {
		case was.relay == [16]byte{}:
			step.of = freeLane
		case was.by == by && !lapsed:
			step.of = ownLane
		case was.by == by:
			step.of = ownLapsed
		case lapsed:
			step.of = otherLapsed
		default:
			errs = append(errs, fmt.Errorf("models: lane %d is leased by %s, and is that of %s", lane, by, was.by))
		}
		errs = append(errs, l.judge(step, fmt.Sprint("lane ", lane)))
		l.leases[lane] = laneLease{relay, by, now.Add(after.Lanes[lane].Left)}
	}
	return errors.Join(errs...)
}

// Released returns an error if the model does not make the changes of a call that
// releases lanes of a relay, or all: nil. counts is whether that relay still counts on
// being present.
func (l *Lane) Released(by string, relay [16]byte, lanes []int, counts bool, now time.Time) error {
	var errs []error
	if lanes == nil {
		for lane := range l.leases {
			lanes = append(lanes, lane)
		}
	}
	for _, lane := range lanes {
		was := l.leases[lane]
		if was.relay != relay {
			continue
		}
		step := laneStep{verb: releasesLane, of: ownLane}
		if !now.Before(was.until) {
			step.of = ownLapsed
		}
		if was.by != by {
			step.who, step.odd = byOther, counts
		}
		errs = append(errs, l.judge(step, fmt.Sprint("lane ", lane)))
		delete(l.leases, lane)
	}
	return errors.Join(errs...)
}

// Sends returns an error if the model does not begin a call of a relay with messages.
func (l *Lane) Sends(by string, ms []*broker.Message) error {
	var errs []error
	sent := make(map[string]bool) // earlier ones of this call
	for _, m := range ms {
		step := laneStep{who: l.who(by, store.Lane(m)), verb: sendsOne, of: rowGone}
		for _, row := range l.rows {
			if row.Message.ID == m.ID {
				step.of, step.odd = stateOf(row.State), l.isBefore(row, sent)
			}
		}
		errs = append(errs, l.judge(step, m.ID))
		sent[m.ID] = true
	}
	return errors.Join(errs...)
}

// isBefore reports whether an earlier message of the ordering key of a row has not been
// published.
func (l *Lane) isBefore(row store.Outgoing, sent map[string]bool) bool {
	for _, m := range l.rows {
		if key := m.Message.OrderingKey; key != "" && key == row.Message.OrderingKey && m.Seq < row.Seq &&
			!l.published[m.Message.ID] && !sent[m.Message.ID] {
			return true
		}
	}
	return false
}

// Published is told that the broker has a message.
func (l *Lane) Published(id string) { l.published[id] = true }

// Wrote returns an error if the model does not make the changes of a call of a process,
// or of a person. after has the messages that are pending, held or stuck in the lanes
// that it may have changed.
func (l *Lane) Wrote(by string, person bool, lanes []int, after []store.Outgoing) error {
	var errs []error
	is := make(map[int64]store.Outgoing)
	for _, m := range after {
		is[m.Seq] = m
		if _, known := l.rows[m.Seq]; !known && isOpen(m) && m.State != store.Pending {
			errs = append(errs, fmt.Errorf("models: %s is put, and %v at once", m.Message.ID, m.State))
		}
	}
	touched := make(map[int]bool)
	for _, lane := range lanes {
		touched[lane] = true
	}
	for seq, was := range l.rows {
		if now, kept := is[seq]; touched[was.Lane] && (!kept || now.State != was.State) {
			errs = append(errs, l.change(by, person, was, now, kept))
		}
	}
	l.follow(touched, after)
	return errors.Join(errs...)
}

// change judges the change of a message.
func (l *Lane) change(by string, person bool, was, now store.Outgoing, kept bool) error {
	step := laneStep{who: l.who(by, was.Lane), of: stateOf(was.State)}
	if person {
		step.who = byAPerson
	}
	switch ended := !kept || !isOpen(now); {
	case ended && person:
		step.verb = discardsRow
	case ended:
		step.verb, step.odd = endsOne, !l.published[was.Message.ID]
	case now.State == store.Stuck && person:
		step.verb = parksRow
	case now.State == store.Stuck:
		step.verb = sticksOne
	case now.State == store.Held && person:
		step.verb = replaysRow
	case now.State == store.Held:
		step.verb = holdsOne
	default:
		return fmt.Errorf("models: %s was %v, and is %v", was.Message.ID, was.State, now.State)
	}
	return l.judge(step, was.Message.ID)
}

// who returns whether a relay has a lane, perhaps under a lease that has lapsed.
func (l *Lane) who(by string, lane int) int {
	if was := l.leases[lane]; was.relay != [16]byte{} && was.by == by {
		return byHolder
	}
	return byOther
}

func isOpen(m store.Outgoing) bool {
	return m.State == store.Pending || m.State == store.Held || m.State == store.Stuck
}

func stateOf(s store.OutgoingState) int {
	switch s {
	case store.Pending:
		return rowPending
	case store.Held:
		return rowHeld
	case store.Stuck:
		return rowStuck
	}
	return rowGone
}

// judge returns an error if the model does not make a step.
func (l *Lane) judge(step laneStep, about string) error {
	l.seen[step.String()] = true
	if !allowedOfLanes[step.String()] {
		return fmt.Errorf("models: lanes.pml does not make this step: %v (%s)", step, about)
	}
	return nil
}

// follow makes what was written what there is.
func (l *Lane) follow(touched map[int]bool, after []store.Outgoing) {
	for seq, was := range l.rows {
		if touched[was.Lane] {
			delete(l.rows, seq)
		}
	}
	for _, m := range after {
		if isOpen(m) {
			l.rows[m.Seq] = m
		}
	}
}

// Seen returns the steps that were made.
func (l *Lane) Seen() map[string]bool { return l.seen }
