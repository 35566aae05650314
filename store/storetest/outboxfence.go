package storetest

import (
	"fmt"
	"slices"

	"github.com/effectively-once/once/store"
)

func outboxFenceRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/fenced",
			"A relay changes messages only in lanes that it leases, and no longer once a lane is released or taken by another relay.",
			outboxFenced[Tx]},
		{"outbox/fenced-partly",
			"Of messages in several lanes, a relay changes those in its own, and the result counts only these.",
			outboxFencedPartly[Tx]},
		{"outbox/late",
			"A relay whose lease has lapsed changes messages until another relay takes the lane.",
			outboxLate[Tx]},
		{"outbox/people",
			"The zero relay stands for people, who need no lease, whoever has it.",
			outboxPeople[Tx]},
		{"outbox/known",
			"Lane, Seq and State identify a row: no other row is changed, and none twice.",
			outboxKnown[Tx]},
	}
}

// changing returns the methods that change messages, by name.
func (b *txBench[Tx]) changing() map[string]func(relay [16]byte, ms ...store.Outgoing) changed {
	type way = func(relay [16]byte, ms ...store.Outgoing) changed
	ways := map[string]way{"RemoveOutgoing": b.removed}
	for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		ways[fmt.Sprint("Sent with ending ", int(then))] = func(relay [16]byte, ms ...store.Outgoing) changed {
			return b.sent(relay, then, ms...)
		}
	}
	if hasCapability[store.HandOver](b.txStore) {
		ways["HandOver"] = func(relay [16]byte, ms ...store.Outgoing) changed {
			handed, err := b.handOver(2).HandOver(b, relay, ms, make([][]store.Shelved, len(ms)), store.Delete)
			return changed{len(slices.DeleteFunc(handed, func(is bool) bool { return !is })), err}
		}
	}
	for _, to := range []store.OutgoingState{store.Delayed, store.Held, store.Stuck} {
		ways[fmt.Sprint("MoveOutgoing to ", to)] = func(relay [16]byte, ms ...store.Outgoing) changed {
			ms = slices.Clone(ms)
			for i := range ms {
				ms[i].Delay, ms[i].Reason = long, "is not written"
			}
			return b.move1(relay, to, ms...)
		}
	}
	return ways
}

func (b *txBench[Tx]) unchangedBy(doing string, relay string, m store.Outgoing) {
	for name, change := range b.changing() {
		b.changes(0, name+" by "+doing, change(b.token(relay), m))
		b.wantSameOut(name+" by "+doing, b.outAs(m.State, m.Message.ID), m)
	}
}

func outboxFenced[Tx any](b *txBench[Tx]) {
	b.put(b.outIn(5, "1", "k"), delayed(b.outIn(5, "2", "k"), short))
	m := b.outAs(store.Pending, "1")
	b.until("a message is due", func() bool { return b.outAs(store.Delayed, "2").Delay <= 0 })
	none := func(doing, relay string) {
		b.unchangedBy(doing, relay, m)
		if n, _, err := b.outbox(1).WakeDelayed(b, b.token(relay), store.Pending, 9); err != nil || n != 0 {
			b.failf("WakeDelayed by %s woke %d, %v", doing, n, err)
		}
	}
	none("a relay that was never seen", "a")
	b.lease("a", long, 4, 6)
	none("a relay that leases other lanes only", "a")
	b.lapses("a", 5)
	b.lease("b", long, 5)
	none("a relay whose lane was taken", "a")
	b.lease("a", long, 5)
	none("a relay that wants its lane back", "a")
	b.release("b", []int{5})
	none("a relay that has released its lane", "b")
	none("a relay whose lane was taken and released", "a")
	b.lease("c", long, 5)
	b.release("c", nil)
	none("a relay that has released all lanes", "c")
	b.lease("a", long, 5)
	b.changes(1, "Sent by the relay that has the lane", b.sent(b.token("a"), store.Delete, m))
	b.wantOut("Sent", store.Pending)
}

func outboxFencedPartly[Tx any](b *txBench[Tx]) {
	for name, change := range b.changing() {
		b.put(b.outIn(1, "1", "k"), b.outIn(2, "2", "k"), b.outIn(1, "3", "k"), b.outIn(3, "4", "k"))
		b.lease("a", long, 1, 3)
		b.lease("b", long, 2)
		ms := b.chunk(1, 2, 3)
		b.changes(3, name+" of messages in two lanes of the relay and one of another", change(b.token("a"), ms...))
		b.wantOut(name, store.Pending, "2")
		b.changes(1, name+" by the other", change(b.token("b"), ms...))
		b.wantOut(name, store.Pending)
		b.tidy()
	}
}

func outboxLate[Tx any](b *txBench[Tx]) {
	for name, change := range b.changing() {
		b.put(b.outIn(9, "1", "k"))
		b.lapses("a", 9)
		b.lease("b", long, 8)
		m := b.outAs(store.Pending, "1")
		b.changes(1, name+" by a relay whose lease has lapsed", change(b.token("a"), m))
		b.wantOut(name, store.Pending)
		b.tidy()
	}
}

func outboxPeople[Tx any](b *txBench[Tx]) {
	b.lease("a", long, 1)
	for name, change := range b.changing() {
		b.put(b.outIn(1, "1", "k"), b.outIn(2, "2", "k"))
		b.changes(2, name+" by people", change(people, b.chunk(1, 2)...))
		b.wantOut(name, store.Pending)
	}
	if l := b.lease("b", long).Lanes[1]; l.Relay != b.token("a") {
		b.failf("when people had changed messages, their lane was leased to %q", l.Relay)
	}
}

func outboxKnown[Tx any](b *txBench[Tx]) {
	b.put(b.outIn(1, "1", "k"), b.outIn(2, "2", "k"), b.outIn(1, "3", "k"))
	ms := b.chunk(1, 2)
	wrong := map[string]store.Outgoing{}
	for name, spoil := range map[string]func(*store.Outgoing){
		"another state":     func(m *store.Outgoing) { m.State = store.Held },
		"the last state":    func(m *store.Outgoing) { m.State = store.Published },
		"another lane":      func(m *store.Outgoing) { m.Lane = 3 },
		"a Seq to come":     func(m *store.Outgoing) { m.Seq += 1 << 40 },
		"a Seq of no sense": func(m *store.Outgoing) { m.Seq = -1 },
	} {
		m := ms[0]
		spoil(&m)
		wrong[name] = m
	}
	same := func(a, b store.Outgoing) bool { return outgoingDifference(a, b) == "" }
	for name, change := range b.changing() {
		for which, m := range wrong {
			b.changes(0, name+" of a message with "+which, change(people, m))
			if !slices.EqualFunc(b.chunk(1, 2), ms, same) {
				b.failf("%s of a message with %s changed something", name, which)
			}
		}
	}
	for name, change := range b.changing() {
		b.put(b.outIn(4, name, "k"), b.outIn(4, name+" too", "l"))
		two := b.chunk(4)
		b.changes(1, name, change(people, two[0]))
		b.changes(0, name+", again", change(people, two[0]))
		b.changes(1, name+" of both, of which one is changed", change(people, two...))
		b.changes(0, name+" of nothing", change(people))
	}
	b.wantIDs("changes of other messages", b.chunk(1, 2), "1", "2", "3")

	away := b.chunk(1)[:1]
	b.changes(1, "MoveOutgoing", b.move1(people, store.Held, away[0]))
	b.changes(1, "MoveOutgoing back", b.move1(people, store.Pending, b.outAs(store.Held, "1")))
	b.changes(1, "Sent of a message that was away meanwhile", b.sent(people, store.Delete, away...))
	b.wantIDs("the end of one that was away", b.chunk(1, 2), "2", "3")
}
