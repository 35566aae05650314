package models

import (
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// Held is what a store holds for a consumer with positions, after a write.
type Held struct {
	By     string // the process that wrote
	Person bool   // which is a person's

	Places  []store.Position
	Shelf   []store.Shelved  // in all states, by Seq
	Effects []broker.Message // their effects are in the same commit
	Aside   []store.Shelved  // they are put on the shelf in the same commit, if they are not there as other records
}

// Position checks that each change of the positions of a consumer, and of its shelf,
// is one that the model positions.pml makes. A transaction with several messages is
// as many changes.
//
// It looks at one change after the other: that the model makes all of them in this
// order is not checked. It does not know the log: which messages are between two
// offsets is judged by how many have had an effect or gone to the shelf. With Keyed,
// fewer may have, because messages with one key have one effect. A log of the model has
// each message once: another record of one that is on the shelf is that one. An attempt
// that leaves
// its message waiting changes nothing that the model has, and rows that are deleted
// after they were settled are left out.
type Position struct {
	Keyed bool // effects have keys

	places map[string]place
	shelf  map[int64]store.Shelved
	had    map[string]bool // messages that have had their effect, by ID
	ended  map[string]bool // messages that have had it on the shelf, or were discarded there, by ID: the shelf has a key for each
	seen   map[string]bool
}

// place is the position in a partition, and who opened it.
type place struct {
	store.Position
	by string
}

// NewPosition returns what is checked of a consumer of which nothing was written.
func NewPosition(keyed bool) *Position {
	return &Position{Keyed: keyed, places: make(map[string]place), shelf: make(map[int64]store.Shelved),
		had: make(map[string]bool), ended: make(map[string]bool), seen: make(map[string]bool)}
}

// Next returns an error if the model does not make this change. Position goes on from
// what was written.
func (p *Position) Next(h Held) error {
	var fresh []store.Shelved
	for _, m := range h.Shelf {
		if _, known := p.shelf[m.Seq]; !known {
			fresh = append(fresh, m)
		}
	}
	moved, errs := p.nextPlaces(h)
	switch {
	case moved != nil:
		errs = append(errs, p.pastAll(*moved, h, fresh))
	case len(fresh) > 0:
		errs = append(errs, fmt.Errorf("models: %s goes to the shelf, and no position moves", fresh[0].Message.ID))
	default:
		errs = append(errs, p.changeShelf(h))
	}
	p.follow(h)
	return errors.Join(errs...)
}

// move is a position that a process has moved.
type move struct {
	who      int
	from, to store.Position
}

func (p *Position) nextPlaces(h Held) (moved *move, errs []error) {
	for _, to := range h.Places {
		was := p.places[to.Partition]
		stays := to.Log == was.Log && to.Offset == was.Offset
		who := byRival
		if h.By == was.by {
			who = byOwner
		}
		switch {
		case to.Epoch == was.Epoch && stays:
			continue
		case to.Epoch == was.Epoch:
			moved = &move{who, was.Position, to}
		case to.Epoch != was.Epoch+1:
			errs = append(errs, fmt.Errorf("models: the epoch after %d is %d", was.Epoch, to.Epoch))
		case stays:
			errs = append(errs, p.judge(positionStep{who: who, verb: opensIt}, to.Partition))
			was.by = h.By
		default:
			errs = append(errs, p.judge(positionStep{who: byPerson, verb: setsItBack}, to.Partition))
			was.by = ""
		}
		p.places[to.Partition] = place{to, was.by}
	}
	return moved, errs
}

// pastAll judges the messages that a position was moved past.
func (p *Position) pastAll(m move, h Held, fresh []store.Shelved) error {
	var errs []error
	past := len(h.Effects) + len(h.Aside)
	if n := m.to.Offset - m.from.Offset; m.from.Log == m.to.Log && (n < int64(past) || n > int64(past) && !p.Keyed) {
		errs = append(errs, fmt.Errorf("models: the position goes from %d to %d, past %d effects and %d messages that go to the shelf",
			m.from.Offset, m.to.Offset, len(h.Effects), len(h.Aside)))
	}
	for _, row := range fresh {
		step := positionStep{who: m.who, verb: movesIt, of: isOn(row), behind: p.isBehind(row.Message.OrderingKey, row.Seq)}
		errs = append(errs, p.judge(step, row.Message.ID))
		p.shelf[row.Seq] = row
	}
	for _, e := range h.Effects { // a transaction that sets a message aside has no effect of its ordering key
		step := positionStep{who: m.who, verb: movesIt, of: itsEffect, behind: p.isBehind(e.OrderingKey, 0)}
		errs = append(errs, p.judge(step, e.ID))
	}
	return errors.Join(errs...)
}

// changeShelf judges the changes of what was on the shelf.
func (p *Position) changeShelf(h Held) error {
	is := make(map[int64]store.Shelved)
	for _, m := range h.Shelf {
		is[m.Seq] = m
	}
	var errs []error
	handled := 0
	for _, was := range p.open() {
		now, kept := is[was.Seq]
		if !kept { // a message that was handled leaves the shelf if no person has decided about it
			now.State = store.Handled
		}
		step := positionStep{who: byWorker, of: isOn(was), behind: p.isBehind(was.Message.OrderingKey, was.Seq)}
		if h.Person {
			step.who = byPerson
		}
		switch id := originalID(was); {
		case now.State == was.State:
			continue
		case now.State == store.Handled && !hasEffect(h, id) && (p.ended[id] || p.Keyed && p.had[id]):
			continue // it has ended as another record
		case now.State == store.Handled:
			step.verb = handlesOne
			if handled++; !hasEffect(h, id) {
				errs = append(errs, fmt.Errorf("models: %s leaves the shelf without its effect", id))
			}
			p.ended[id] = true
		case now.State == store.Parked:
			step.verb = parksOne
		case now.State == store.Waiting:
			step.verb = replaysOne
		default:
			step.verb = discardsOne
			p.ended[originalID(was)] = true
		}
		errs = append(errs, p.judge(step, was.Message.ID))
	}
	if len(h.Effects) != handled {
		errs = append(errs, fmt.Errorf("models: %d effects, and %d messages leave the shelf for them", len(h.Effects), handled))
	}
	return errors.Join(errs...)
}

// isBehind reports whether an earlier message of an ordering key is on the shelf: of
// any row if before is 0.
func (p *Position) isBehind(key string, before int64) bool {
	return key != "" && slices.ContainsFunc(p.open(), func(m store.Shelved) bool {
		return m.Message.OrderingKey == key && (before == 0 || m.Seq < before)
	})
}

// open returns the messages on the shelf that have no end, by Seq.
func (p *Position) open() (all []store.Shelved) {
	for _, m := range p.shelf {
		if m.State == store.Waiting || m.State == store.Parked {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b store.Shelved) int { return int(a.Seq - b.Seq) })
	return all
}

func isOn(m store.Shelved) int {
	if m.State == store.Parked {
		return parkedOne
	}
	return waitingOne
}

// originalID returns the ID that the message of a row was published with.
func originalID(m store.Shelved) string {
	if id, copied := m.Message.Header[broker.OriginalIDHeader]; copied {
		return id
	}
	return m.Message.ID
}

func hasEffect(h Held, id string) bool {
	return slices.ContainsFunc(h.Effects, func(m broker.Message) bool { return m.ID == id })
}

// judge returns an error if the model does not make a step.
func (p *Position) judge(step positionStep, about string) error {
	p.seen[step.String()] = true
	if !allowedOfPositions[step.String()] {
		return fmt.Errorf("models: positions.pml does not make this step: %v (%s)", step, about)
	}
	return nil
}

// follow makes what was written what there is.
func (p *Position) follow(h Held) {
	clear(p.shelf)
	for _, m := range h.Shelf {
		p.shelf[m.Seq] = m
	}
	for _, m := range h.Effects {
		p.had[m.ID] = true
	}
}

// Seen returns the steps that were made.
func (p *Position) Seen() map[string]bool { return p.seen }
