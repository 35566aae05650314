package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func outboxChangeRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/sent",
			"Sent ends messages in any State: their rows are deleted, kept as Published, or archived.",
			outboxSent[Tx]},
		{"outbox/moves",
			"MoveOutgoing sets any State, Attempts and Reason, also of what stays Pending, and changes nothing else.",
			outboxMoves[Tx]},
		{"outbox/moves-each",
			"MoveOutgoing writes to each message its own Attempts and Reason.",
			outboxMovesEach[Tx]},
		{"outbox/decided",
			"DecidedOutgoing returns what people made Held or Stuck, as soon as MoveOutgoing has returned, and as long as it is.",
			outboxDecided[Tx]},
		{"outbox/removes", "RemoveOutgoing deletes messages in any State.", outboxRemoves[Tx]},
		{"outbox/sent-race",
			"Of several equal calls of Sent at once, one changes each row.",
			outboxSentRace[Tx]},
		{"outbox/forget-since",
			"A Published message is kept from when it was published, not from when it was put.",
			outboxForgetSince[Tx]},
		{"outbox/forget",
			"ForgetOutgoing deletes Published messages that were published longer ago than keep, at most limit.",
			outboxForget[Tx]},
	}
}

// outgoingStates lists all states.
var outgoingStates = []store.OutgoingState{store.Pending, store.Delayed, store.Held, store.Stuck, store.Published}

// decided returns the messages of this case that DecidedOutgoing returns, by ID.
func (b *txBench[Tx]) decided() map[string]store.Outgoing {
	found := make(map[string]store.Outgoing)
	ms, err := b.outbox(0).DecidedOutgoing(b, false)
	b.must("DecidedOutgoing", err)
	stuck, err := b.outbox(1).DecidedOutgoing(b, true)
	b.must("DecidedOutgoing", err)
	for _, m := range ms {
		isThere := slices.ContainsFunc(stuck, func(s store.Outgoing) bool { return s.Lane == m.Lane && s.Seq == m.Seq })
		if m.Message.Topic == b.topic() && isThere != (m.State == store.Stuck) {
			b.failf("DecidedOutgoing returned %s, and of what is stuck: %v", showOutgoing(m), outgoingIDs(stuck))
		}
		if m.Message.Topic == b.topic() {
			found[m.Message.ID] = m
		}
	}
	return found
}

func outboxDecided[Tx any](b *txBench[Tx]) {
	waits := func(after, id string, state store.OutgoingState) {
		is, got := b.outAs(state, id), b.decided()
		if m, ok := got[id]; !ok || m.Lane != is.Lane || m.Seq != is.Seq || m.State != state ||
			m.Message.OrderingKey != is.Message.OrderingKey {
			b.failf("after %s DecidedOutgoing returned %+v, want the message in lane %d with Seq %d, which is %v", after, got, is.Lane,
				is.Seq, state)
		}
	}
	gone := func(after, id string) {
		if m, ok := b.decided()[id]; ok {
			b.failf("after %s DecidedOutgoing returned %s", after, showOutgoing(m))
		}
	}
	b.put(b.out("1", "k"), b.out("2", "k"), b.out("3", "l"), delayed(b.out("4", "m"), long), b.out("5", ""))
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		gone("PutTx", id)
	}
	for id, was := range map[string]store.OutgoingState{"1": store.Pending, "4": store.Delayed, "5": store.Pending} {
		b.changes(1, "MoveOutgoing of people to stuck", b.move1(people, store.Stuck, b.outAs(was, id)))
		waits("MoveOutgoing of people to stuck", id, store.Stuck)
	}
	b.changes(1, "MoveOutgoing of people to held", b.move1(people, store.Held, b.outAs(store.Stuck, "1")))
	waits("MoveOutgoing of people to held", "1", store.Held)
	b.changes(1, "MoveOutgoing of people to held", b.move1(people, store.Held, b.outAs(store.Pending, "3")))
	waits("MoveOutgoing of people to held", "3", store.Held)
	gone("changes of other messages", "2")

	b.changes(1, "Sent", b.sent(people, store.Keep, b.outAs(store.Held, "1")))
	gone("Sent", "1")
	b.changes(1, "RemoveOutgoing", b.removed(people, b.outAs(store.Stuck, "4")))
	gone("RemoveOutgoing", "4")
	b.changes(1, "MoveOutgoing to pending", b.move1(people, store.Pending, b.outAs(store.Held, "3")))
	gone("MoveOutgoing to pending", "3")
	waits("changes of other messages", "5", store.Stuck)
}

func outboxSent[Tx any](b *txBench[Tx]) {
	for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		for _, state := range outgoingStates[:store.Published] {
			id := fmt.Sprint("then ", int(then), ", was ", state)
			b.putAs(state, b.out(id, "k"), b.out("behind "+id, "k"))
			m, behind := b.outAs(state, id), b.outAs(state, "behind "+id)
			b.changes(1, "Sent", b.sent(people, then, m))
			b.wantSameOut("Sent of another message", b.outAs(state, "behind "+id), behind)
			b.changes(0, "Sent, again", b.sent(people, then, m))
			if then == store.Keep {
				got := b.outAs(store.Published, id)
				if got.Changed.Before(got.Created) {
					b.failf("a message that was sent has Changed %v, and was created %v", got.Changed, got.Created)
				}
				m.State, m.Changed = store.Published, got.Changed
				b.wantSameOut("Sent", got, m)
			}
			for _, is := range outgoingStates {
				if is == store.Published && then == store.Keep {
					continue
				}
				if left := b.outgoing(store.OutgoingQuery{State: is, IDs: []string{id}}); len(left) > 0 {
					b.failf("after Sent with ending %d a message that was %v is %v", then, state, is)
				}
			}
			b.changes(1, "RemoveOutgoing", b.removed(people, behind))
		}
	}
}

func outboxMoves[Tx any](b *txBench[Tx]) {
	const piece = "é\n\t'\"\\ 🙂 "
	text := strings.Repeat(piece, (64<<10)/len(piece))
	m := b.out("1", "k")
	m.Message.Body, m.Message.Header = everyByte(), map[string]string{"a": "b"}
	b.put(m, b.out("2", "k"))
	m, other := b.outAs(store.Pending, "1"), b.outAs(store.Pending, "2")
	move := func(from, to store.OutgoingState, reason string) {
		change := m
		change.Attempts, change.Reason, change.Delay = m.Attempts+3, reason, long
		change.Message.Body, change.Message.ID, change.Message.Topic = []byte("is not written"), "neither", "nor this"
		doing := fmt.Sprintf("a move from %v to %v", from, to)
		b.changes(1, doing, b.move1(people, to, change))
		got := b.outAs(to, "1")
		if got.Changed.Before(got.Created) {
			b.failf("%s left Changed at %v, and it was created %v", doing, got.Changed, got.Created)
		}
		if to == store.Delayed && (got.Delay <= 0 || got.Delay > long) {
			b.failf("%s with a Delay of %v left %v", doing, long, got.Delay)
		}
		m.State, m.Attempts, m.Reason, m.Changed = to, change.Attempts, reason, got.Changed
		b.wantSameOut(doing, got, m)
		if left := b.outgoing(store.OutgoingQuery{State: from, IDs: []string{"1"}}); from != to && len(left) > 0 {
			b.failf("after %s the message is %v, too", doing, from)
		}
	}
	for _, from := range outgoingStates {
		for i, to := range outgoingStates {
			if from == to && from != store.Pending { // relays write why a message is still Pending
				continue
			}
			if m.State != from {
				move(m.State, from, "")
			}
			move(from, to, []string{"no route: é\n\x01", "", text}[i%3])
		}
	}
	b.wantSameOut("moves of another message", b.outAs(store.Pending, "2"), other)
}

func outboxMovesEach[Tx any](b *txBench[Tx]) {
	var ms []store.Outgoing
	for i := range 20 {
		ms = append(ms, b.outIn(i%3, fmt.Sprint(i), "k"))
	}
	b.put(ms...)
	ms = b.chunk(2, 0, 1)
	for i := range ms {
		ms[i].Attempts, ms[i].Reason = i+1, "because of "+ms[i].Message.ID
		ms[i].Delay = long * time.Duration(1+i%2)
	}
	b.changes(len(ms), "MoveOutgoing", b.move1(people, store.Delayed, ms...))
	for _, m := range ms {
		got := b.outAs(store.Delayed, m.Message.ID)
		if got.Attempts != m.Attempts || got.Reason != m.Reason || got.Delay > m.Delay || got.Delay < m.Delay-10*b.patience {
			b.failf("of several messages that were moved, one should be\n%s\nand is\n%s", showOutgoing(m), showOutgoing(got))
		}
	}
	slices.SortFunc(ms, func(a, b store.Outgoing) int { return cmp.Compare(a.Seq, b.Seq) })
	b.wantOut("MoveOutgoing", store.Delayed, outgoingIDs(ms)...)
}

func outboxRemoves[Tx any](b *txBench[Tx]) {
	for _, state := range outgoingStates {
		id := state.String()
		b.putAs(state, b.out(id, "k"), b.out("behind "+id, "k"))
		b.changes(1, "RemoveOutgoing of a message that is "+id, b.removed(people, b.outAs(state, id)))
		b.wantOut("RemoveOutgoing", state, "behind "+id)
		b.changes(1, "RemoveOutgoing of a message that is "+id, b.removed(people, b.outAs(state, "behind "+id)))
	}
}

// outboxSentRace compares counts. A call that fails and is repeated may have
// changed rows before, so counts may be too low.
func outboxSentRace[Tx any](b *txBench[Tx]) {
	const n, messages = 8, 20
	for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		var ms []store.Outgoing
		for i := range messages {
			ms = append(ms, b.outIn(i%3, fmt.Sprint(i), "k"))
		}
		b.put(ms...)
		ms = b.chunk(0, 1, 2)
		var sum, repeats atomic.Int64
		b.together(n, func(i int) {
			b.persist("Sent", func() error {
				n, err := b.outbox(i).Sent(b, people, ms, then)
				if sum.Add(int64(n)); err != nil {
					repeats.Add(1)
				}
				return err
			})
		})
		if got := sum.Load(); got > messages || got < messages && repeats.Load() == 0 {
			b.failf("%d calls of Sent at once, for the same %d messages, returned %d changed rows", n, messages, got)
		}
		b.wantOut("Sent", store.Pending)
		b.tidy()
	}
}

// outboxForgetSince proves nothing about a store that takes longer for a few
// calls than the message is old.
func outboxForgetSince[Tx any](b *txBench[Tx]) {
	const age = 40 * short
	b.put(b.out("1", "k"))
	m := b.outAs(store.Pending, "1")
	b.until("a message is old", func() bool { return b.depths(1)[store.Pending].Oldest > age })
	sent := time.Now()
	b.changes(1, "Sent", b.sent(people, store.Keep, m))
	_, err := b.outbox(0).ForgetOutgoing(b, age, 9)
	b.must("ForgetOutgoing", err)
	left := b.outgoing(store.OutgoingQuery{State: store.Published})
	if took := time.Since(sent); len(left) == 0 && took < age {
		b.failf("a message that was put %v ago, and published %v ago, is not kept for %v", age, took, age)
	}
}

// outboxForget compares counts, so nothing else may forget messages during it.
func outboxForget[Tx any](b *txBench[Tx]) {
	for _, state := range outgoingStates[:store.Published] {
		b.putAs(state, b.out(state.String(), ""))
	}
	kept := []string{"1", "2", "3", "4", "5", "6"}
	for _, id := range append([]string{"0"}, kept...) {
		b.putAs(store.Pending, b.out(id, "k"))
		b.changes(1, "Sent", b.sent(people, store.Keep, b.outAs(store.Pending, id)))
	}
	b.changes(1, "MoveOutgoing", b.move1(people, store.Stuck, b.outAs(store.Published, "0")))
	for _, limit := range []int{0, -1} {
		_, err := b.outbox(0).ForgetOutgoing(b, 0, limit)
		b.wantErr(fmt.Sprintf("ForgetOutgoing with a limit of %d", limit), err, once.ErrInvalid)
	}
	b.wantOut("ForgetOutgoing without a limit", store.Published, kept...)
	if _, err := b.outbox(0).ForgetOutgoing(b, long, 1000); err != nil {
		b.failf("ForgetOutgoing: %v", err)
	}
	b.wantOut("ForgetOutgoing of older messages", store.Published, kept...)
	left, forgotten := len(kept), 0
	b.until("all is forgotten that is to be", func() bool {
		n, err := b.outbox(0).ForgetOutgoing(b, 0, 2)
		b.must("ForgetOutgoing", err)
		before := left
		left, forgotten = len(b.outgoing(store.OutgoingQuery{State: store.Published})), forgotten+n
		if n > 2 || before-left > 2 {
			b.failf("ForgetOutgoing with a limit of 2 returned %d, and %d are gone", n, before-left)
		}
		return left == 0
	})
	if forgotten < len(kept) {
		b.failf("ForgetOutgoing deleted %d messages, and returned %d", len(kept), forgotten)
	}
	for _, state := range outgoingStates[:store.Stuck] {
		b.wantOut("ForgetOutgoing", state, state.String())
	}
	b.wantOut("ForgetOutgoing", store.Stuck, store.Stuck.String(), "0")
}
