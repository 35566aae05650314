package oncetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// schedule is a way in which messages arrive and processes crash.
type schedule struct {
	name    string // of the subtest
	window  string // what happens, in a sentence
	kind    kind
	at      point // of a crash, or of a lost reply
	prepare func(*trial)
	deliver func(*trial) error
}

// kind is the subject of a schedule, on which the advice depends.
type kind int

const (
	repeated  kind = iota // messages are delivered again
	laterTime             // messages are delivered with another time
	otherID               // messages are delivered with another ID
	forgotten             // messages are delivered after their keys were forgotten
	reordered             // messages are delivered in another order
	crash                 // a crash at a step
	lostReply             // the reply to a request or a publish is lost
	storm
	alone // one message is delivered alone
)

const crowd = 64

// reference is the result of an undisturbed run.
type reference struct {
	state   string
	states  []string // before the first message, and after each
	trace   []point
	keys    map[string]map[once.Key]bool // by message
	outside map[string]bool
}

// takesSteps reports whether the service did anything through its Process
// besides receiving and settling.
func (ref reference) takesSteps() bool {
	return slices.ContainsFunc(ref.trace, func(pt point) bool {
		return !slices.Contains([]string{"open", "receive", "ack", "return", "reject", "close"}, pt.step)
	})
}

// inTransaction reports whether the service uses transactions.
func (ref reference) inTransaction() bool {
	return slices.ContainsFunc(ref.trace, func(pt point) bool { return pt.step == "commit" })
}

// reference runs the case twice. If the results differ, the case proves
// nothing.
func (pr *prover) reference(t testing.TB) (ref reference, tr *trial, err error) {
	t.Helper()
	for _, first := range []bool{true, false} {
		var end func()
		tr, end = pr.begin(t, "")
		defer end()
		tr.start()
		if err := tr.await(true); err != nil {
			return ref, tr, err
		}
		for _, m := range pr.messages {
			if first {
				state, err := tr.rest()
				if err != nil {
					return ref, tr, err
				}
				ref.states = append(ref.states, state)
			}
			if err := tr.deliver(m.ID, m == pr.messages[len(pr.messages)-1], m); err != nil {
				return ref, tr, err
			}
		}
		state, err := tr.finish()
		switch {
		case err != nil:
			return ref, tr, err
		case first:
			ref.state, ref.trace, ref.keys, ref.outside = state, tr.trace, tr.keys, tr.outside
			ref.states = append(ref.states, state)
		case state != ref.state:
			return ref, tr, &finding{fault: unsteady, detail: difference(ref.state, state)}
		default:
			ref.trace = slices.DeleteFunc(ref.trace, func(pt point) bool { return !slices.Contains(tr.trace, pt) })
		}
	}
	if ref.state == ref.states[0] {
		return ref, tr, &finding{fault: blind, detail: ref.state}
	}
	return ref, tr, nil
}

// begin makes a world.
func (pr *prover) begin(t testing.TB, wanted string) (tr *trial, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), pr.deadline)
	tr = newTrial(ctx, pr.setup(t))
	tr.quiet, tr.wanted = pr.quiet, wanted
	return tr, func() {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for _, p := range tr.lives {
			p.dead = true
			p.cancel()
		}
		cancel()
	}
}

// each delivers messages one after another, each several times.
func each(ms []*broker.Message, times int) func(*trial) error {
	return func(t *trial) error {
		for i, m := range ms {
			for n := range times {
				if err := t.deliver(m.ID, i == len(ms)-1 && n == times-1, m); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func together(ms []*broker.Message) func(*trial) error {
	return func(t *trial) error { return t.deliver("", true, ms...) }
}

func inTurn(parts ...func(*trial) error) func(*trial) error {
	return func(t *trial) error {
		for _, part := range parts {
			if err := part(t); err != nil {
				return err
			}
		}
		return nil
	}
}

// changed returns changed copies of messages.
func changed(ms []*broker.Message, change func(*broker.Message)) []*broker.Message {
	copies := make([]*broker.Message, len(ms))
	for i, m := range ms {
		c := *m
		c.Header = maps.Clone(m.Header)
		change(&c)
		copies[i] = &c
	}
	return copies
}

func (pr *prover) schedules(ref reference) []schedule {
	ms, all := pr.messages, each(pr.messages, 1)
	later := changed(ms, func(m *broker.Message) { m.Time = m.Time.Add(time.Hour + time.Millisecond) })
	list := []schedule{
		{name: "twice in a row", window: "each message was delivered, handled, and delivered again", deliver: each(ms, 2)},
		{name: "64 at once", window: "each message was delivered 64 times at once, to two processes",
			prepare: func(t *trial) { t.start() }, deliver: pr.crowds},
		{name: "again after everything", window: "after all messages were handled, all were delivered again", deliver: inTurn(all, all)},
		{name: "again from dead letters", window: "each message was delivered again from a dead-letter queue, after another message",
			deliver: pr.fromDeadLetters},
		{name: "sent again with a later time", window: "the producer sent each message a second time: with the same ID, and an hour later",
			kind: laterTime, deliver: inTurn(all, each(later, 1))},
		{name: "twice in reverse order", window: "messages of unrelated ordering keys were delivered in reverse order, and all of them twice",
			kind: reordered, deliver: each(backwards(ms), 2)},
		{name: "lost acks", window: "the first acknowledgement of each message was lost, and the message was delivered again",
			prepare: func(t *trial) { t.lostAcks = make(map[string]bool) }, deliver: all},
		{name: "broken session", window: "all messages were delivered together, and the session broke just before one of them was acknowledged",
			prepare: breakAt((len(ms) + 1) / 2), deliver: together(ms)},
	}
	if pr.named {
		others := changed(ms, func(m *broker.Message) { m.ID = m.ID[:min(len(m.ID), 240)] + "-sent-again" })
		list = append(list, schedule{name: "sent again with another ID", kind: otherID, deliver: inTurn(all, each(others, 1)),
			window: "the producer sent each piece of work a second time, in a message with another ID"})
	}
	if pr.forgets {
		forget := func(t *trial) error { return t.world.forget(t.deadline) }
		list = append(list, schedule{name: "again after retention", kind: forgotten, deliver: inTurn(all, forget, all),
			window: "after all messages were handled and their keys forgotten, all were delivered again"})
	}
	list = append(list, pr.swallowed(ref)...)
	list = append(list, pr.crashAtEach(ref)...)
	for n := range 4 {
		list = append(list, pr.storm(ref, n))
	}
	return list
}

// crowds delivers 64 copies of each message.
func (pr *prover) crowds(t *trial) error {
	for i, m := range pr.messages {
		if err := t.deliver(m.ID, i == len(pr.messages)-1, slices.Repeat([]*broker.Message{m}, crowd)...); err != nil {
			return err
		}
	}
	return nil
}

// fromDeadLetters delivers each message again after the next one.
func (pr *prover) fromDeadLetters(t *trial) error {
	dead := changed(pr.messages, func(m *broker.Message) {
		if m.Header == nil {
			m.Header = make(map[string]string)
		}
		m.Header[broker.ReasonHeader] = "rejected, and given back by a person"
	})
	for i, m := range pr.messages {
		if err := t.deliver(m.ID, false, m); err != nil {
			return err
		}
		if i > 0 {
			if err := t.deliver(dead[i-1].ID, false, dead[i-1]); err != nil {
				return err
			}
		}
	}
	return t.deliver(dead[len(dead)-1].ID, true, dead[len(dead)-1])
}

// backwards reverses the order of ordering keys, and keeps the order of the
// messages of each.
func backwards(ms []*broker.Message) (all []*broker.Message) {
	done := make(map[string]bool)
	for _, m := range slices.Backward(ms) {
		switch key := m.OrderingKey; {
		case key == "":
			all = append(all, m)
		case !done[key]:
			done[key] = true
			for _, of := range ms {
				if of.OrderingKey == key {
					all = append(all, of)
				}
			}
		}
	}
	return all
}

// breakAt breaks all sessions before the n-th acknowledgement.
func breakAt(n int) func(*trial) {
	return func(t *trial) {
		acks := 0
		t.plan = func(pt point, _ int) action {
			if pt.step == "ack" && pt.side == before {
				if acks++; acks == n {
					return breakSessions
				}
			}
			return nothing
		}
	}
}

func strikeAt(at point, d action) func(*trial) {
	return func(t *trial) {
		t.plan = func(pt point, _ int) action {
			if pt == at {
				return d
			}
			return nothing
		}
	}
}

// swallowed returns a schedule for each message that changed nothing. It is
// delivered alone, and must change nothing then, either.
func (pr *prover) swallowed(ref reference) (list []schedule) {
	works := make(map[string]bool)
	for i, m := range pr.messages {
		work := pr.work(m)
		if ref.states[i] == ref.states[i+1] && !works[work] && i > 0 {
			list = append(list, schedule{name: "alone " + m.ID, kind: alone, deliver: each([]*broker.Message{m}, 1),
				window: fmt.Sprintf("%s was delivered alone. After the messages before it, it had changed nothing", m.ID)})
		}
		works[work] = true
	}
	return list
}

// crashAtEach returns a schedule for each side of each step of the reference.
func (pr *prover) crashAtEach(ref reference) (list []schedule) {
	points := slices.Clone(ref.trace)
	if len(points) > pr.crashes {
		rng := rand.New(rand.NewPCG(pr.seed, 0))
		for len(points) > pr.crashes {
			i := rng.IntN(len(points))
			points = slices.Delete(points, i, i+1)
		}
	}
	for _, pt := range points {
		list = append(list, schedule{name: "crash " + pt.String(), kind: crash, at: pt, prepare: strikeAt(pt, die),
			deliver: each(pr.messages, 1), window: "the process crashed " + ref.between(pt) + ", and the next one started"})
		if pt.side == after && ref.outside[pt.step] {
			list = append(list, schedule{name: "lost reply " + pt.String(), kind: lostReply, at: pt, prepare: strikeAt(pt, loseReply),
				deliver: each(pr.messages, 1), window: "the reply was lost " + pt.String() + ", which had taken effect, and the process continued"})
		}
	}
	return list
}

// between describes the window of a point by the steps around it.
func (ref reference) between(pt point) string {
	text := pt.String()
	i := slices.Index(ref.trace, pt)
	switch {
	case pt.side == before && i > 0 && ref.trace[i-1].message == pt.message:
		return text + fmt.Sprintf(" (the last step before it was %s)", ref.trace[i-1].step)
	case pt.side == after && i+1 < len(ref.trace) && ref.trace[i+1].message == pt.message:
		return text + fmt.Sprintf(" (the next step would have been %s)", ref.trace[i+1].step)
	}
	return text
}

// storm delivers everything at once, some of it repeatedly, and lets processes
// crash at random points.
func (pr *prover) storm(ref reference, n int) schedule {
	rng := rand.New(rand.NewPCG(pr.seed, uint64(n)+1))
	ms := pr.shuffled(rng)
	deaths := make(map[int]bool)
	for range 3 {
		deaths[1+rng.IntN(2*len(ref.trace)+1)] = true
	}
	return schedule{
		name: fmt.Sprintf("storm %d of seed %d", n+1, pr.seed), kind: storm, deliver: together(ms),
		window: fmt.Sprintf("all messages were delivered together, as %s, and processes crashed after %v steps",
			strings.Join(ids(ms), " "), slices.Sorted(maps.Keys(deaths))),
		prepare: func(t *trial) {
			t.plan = func(_ point, n int) action {
				if deaths[n] {
					return die
				}
				return nothing
			}
		},
	}
}

// shuffled returns each message one to three times, in random order. The first
// copies of an ordering key keep their order.
func (pr *prover) shuffled(rng *rand.Rand) []*broker.Message {
	lanes, copies := [][]*broker.Message(nil), []*broker.Message(nil)
	at := make(map[string]int)
	for _, m := range pr.messages {
		i, known := at[m.OrderingKey]
		if !known || m.OrderingKey == "" {
			i = len(lanes)
			at[m.OrderingKey], lanes = i, append(lanes, nil)
		}
		lanes[i] = append(lanes[i], m)
	}
	var all []*broker.Message
	for len(lanes) > 0 {
		i := rng.IntN(len(lanes))
		m := lanes[i][0]
		all = append(all, m)
		copies = append(copies, slices.Repeat([]*broker.Message{m}, rng.IntN(3))...)
		if lanes[i] = lanes[i][1:]; len(lanes[i]) == 0 {
			lanes = slices.Delete(lanes, i, i+1)
		}
		if len(copies) > 0 && rng.IntN(2) == 0 {
			all, copies = append(all, copies[0]), copies[1:]
		}
	}
	return append(all, copies...)
}

func ids(ms []*broker.Message) (names []string) {
	for _, m := range ms {
		names = append(names, m.ID)
	}
	return names
}
