package storetest

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
)

func outboxDepthRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/depth",
			"OutboxDepth counts the messages in each State except Published, and omits States without messages.",
			outboxDepth[Tx]},
		{"outbox/depth-estimated",
			"OutboxDepth may estimate from count on, and reports it. An estimate is never below count.",
			outboxDepthEstimated[Tx]},
		{"outbox/oldest",
			"Oldest is the time since the oldest message in a State was put, whatever happened to it since.",
			outboxOldest[Tx]},
	}
}

func (b *txBench[Tx]) depths(count int) map[store.OutgoingState]store.Depth {
	all, err := b.outbox(1).OutboxDepth(b, count)
	b.must("OutboxDepth", err)
	depths := make(map[store.OutgoingState]store.Depth)
	for _, d := range all {
		if _, twice := depths[d.State]; twice {
			b.failf("OutboxDepth has two counts of %v: %+v", d.State, all)
		}
		if d.Count == 0 && !d.Estimated {
			b.failf("OutboxDepth has a count of %v, and there are no messages", d.State)
		}
		depths[d.State] = d
	}
	if _, there := depths[store.Published]; there {
		b.failf("OutboxDepth counts Published messages: %+v", all)
	}
	return depths
}

// wantDepths checks how many messages there are more than before.
func (b *txBench[Tx]) wantDepths(after string, before map[store.OutgoingState]store.Depth,
	want map[store.OutgoingState]int) {

	now := b.depths(1 << 20)
	for _, state := range outgoingStates[:store.Published] {
		if got := now[state].Count - before[state].Count; got != want[state] || now[state].Estimated {
			b.failf("after %s OutboxDepth has %+v for %v, want %d more than before, %+v",
				after, now[state], state, want[state], before[state])
		}
	}
}

func outboxDepth[Tx any](b *txBench[Tx]) {
	before := b.depths(1 << 20)
	b.wantDepths("nothing", before, nil)
	b.inTx(false, func(tx Tx) { b.must("PutTx", b.outbox(0).PutTx(b, tx, []store.Outgoing{b.out("no", "k")})) })
	b.wantDepths("a rollback", before, nil)
	b.put(b.out("1", "k"), b.out("2", "k"), b.out("3", "k"), b.out("4", ""), delayed(b.out("5", "k"), long))
	b.putAs(store.Held, b.out("6", "k"), b.out("7", "k"))
	b.putAs(store.Stuck, b.out("8", "k"))
	want := map[store.OutgoingState]int{store.Pending: 4, store.Delayed: 1, store.Held: 2, store.Stuck: 1}
	b.wantDepths("PutTx and MoveOutgoing", before, want)
	b.changes(1, "Sent", b.sent(people, store.Keep, b.outAs(store.Held, "6")))
	b.changes(1, "Sent", b.sent(people, store.Delete, b.outAs(store.Pending, "1")))
	b.changes(1, "Sent", b.sent(people, store.Archive, b.outAs(store.Pending, "2")))
	b.changes(1, "RemoveOutgoing", b.removed(people, b.outAs(store.Stuck, "8")))
	want = map[store.OutgoingState]int{store.Pending: 2, store.Delayed: 1, store.Held: 1}
	b.wantDepths("Sent", before, want)
}

func outboxDepthEstimated[Tx any](b *txBench[Tx]) {
	before := b.depths(1 << 20)
	var ms []store.Outgoing
	for i := range 300 {
		ms = append(ms, b.out(fmt.Sprint(i), fmt.Sprint(i%3)))
	}
	b.put(ms...)
	b.putAs(store.Held, b.out("held", ""))
	for _, count := range []int{1, 2, 299, 300, 301, 1000} {
		now := b.depths(count)
		for state, want := range map[store.OutgoingState]int{store.Pending: 300, store.Held: 1} {
			want += before[state].Count
			d := now[state]
			switch {
			case d.Estimated && want < count:
				b.failf("OutboxDepth with a count of %d estimated %d messages: %+v", count, want, d)
			case d.Estimated && d.Count < count, !d.Estimated && d.Count != want:
				b.failf("OutboxDepth with a count of %d has %+v of %d messages", count, d, want)
			}
		}
	}
}

func outboxOldest[Tx any](b *txBench[Tx]) {
	const age = 4 * short
	if before := b.depths(1 << 20); len(before) > 0 {
		b.failf("the outbox is not empty when the suite begins: %+v", before)
	}
	b.put(b.out("1", "k"))
	b.until("Oldest grows", func() bool { return b.depths(100)[store.Pending].Oldest > age })
	b.put(b.out("2", "k"))
	b.putAs(store.Held, b.out("3", "k"))
	if d := b.depths(100); d[store.Pending].Oldest <= age || d[store.Held].Oldest > 10*b.patience {
		b.failf("a message was put %v ago, another one now, and OutboxDepth returned %+v", age, d)
	}
	b.changes(1, "MoveOutgoing", b.move1(people, store.Stuck, b.outAs(store.Pending, "1")))
	d := b.depths(100)
	if d[store.Stuck].Oldest <= age {
		b.failf("a message that was put %v ago was moved, and OutboxDepth returned %+v", age, d)
	}
	if oldest := d[store.Pending].Oldest; oldest >= d[store.Stuck].Oldest || oldest < 0 || oldest > 10*b.patience {
		b.failf("when the oldest message was moved, OutboxDepth returned %+v", d)
	}
	b.until("Oldest is a time since", func() bool { return b.depths(1)[store.Pending].Oldest > time.Millisecond })
}
