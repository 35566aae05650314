package storetest

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
)

func outboxDelayRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/delay",
			"A message that is put with a Delay above 0 is Delayed, and its Delay counts down.",
			outboxDelay[Tx]},
		{"outbox/wakes",
			"WakeDelayed sets the State of Delayed messages that are due, and changes nothing else.",
			outboxWakes[Tx]},
		{"outbox/wakes-own",
			"WakeDelayed changes messages only in lanes that the relay leases, and next is about these lanes.",
			outboxWakesOwn[Tx]},
		{"outbox/wakes-most",
			"WakeDelayed changes at most limit messages, and next says if more may be due now.",
			outboxWakesMost[Tx]},
		{"outbox/next",
			"WakeDelayed returns the time until the next message is due, and at most an hour.",
			outboxNext[Tx]},
		{"outbox/moved-to-delayed",
			"A message that is moved to Delayed is due its Delay from then.",
			outboxMovedToDelayed[Tx]},
	}
}

// wake calls WakeDelayed for a relay.
func (b *txBench[Tx]) wake(name string, to store.OutgoingState, limit int) (woken int, next time.Duration) {
	woken, next, err := b.outbox(1).WakeDelayed(b, b.token(name), to, limit)
	b.must("WakeDelayed", err)
	return woken, next
}

// wantNext checks when the next message is due.
func (b *txBench[Tx]) wantNext(after string, next, want time.Duration) {
	if next > want || next < want-10*b.patience || want == time.Hour && next != want {
		b.failf("after %s the next message is due in %v, want %v", after, next, want)
	}
}

func outboxDelay[Tx any](b *txBench[Tx]) {
	b.put(delayed(b.out("late", ""), long), b.out("now", ""), delayed(b.out("past", ""), -long),
		delayed(b.out("soon", ""), 10*short))
	b.wantOut("PutTx", store.Pending, "now", "past")
	b.wantOut("PutTx", store.Delayed, "late", "soon")
	for _, id := range []string{"now", "past"} {
		if m := b.outAs(store.Pending, id); m.Delay > 0 {
			b.failf("a message that is to be published at once has a Delay of %v", m.Delay)
		}
	}
	late := b.outAs(store.Delayed, "late").Delay
	if late <= 0 || late > long || late < long-10*b.patience {
		b.failf("a message with a Delay of %v has one of %v", long, late)
	}
	b.until("Delay counts down", func() bool { return b.outAs(store.Delayed, "soon").Delay < -time.Millisecond })
	if again := b.outAs(store.Delayed, "late").Delay; again >= late {
		b.failf("a message that had a Delay of %v has one of %v", late, again)
	}
	b.wantOut("a Delay that has passed, and no WakeDelayed", store.Pending, "now", "past")
	b.wantOut("a Delay that has passed, and no WakeDelayed", store.Delayed, "late", "soon")
}

func outboxWakes[Tx any](b *txBench[Tx]) {
	for _, to := range []store.OutgoingState{store.Pending, store.Held} {
		b.put(b.outIn(1, "tried", "k"), delayed(b.outIn(1, "new", "k"), short), delayed(b.outIn(1, "late", "k"), long/2))
		tried := b.outAs(store.Pending, "tried")
		tried.Attempts, tried.Reason, tried.Delay = 3, "boom", short
		b.changes(1, "MoveOutgoing", b.move1(people, store.Delayed, tried))
		tried, late := b.outAs(store.Delayed, "tried"), b.outAs(store.Delayed, "late")
		b.lease("a", long, 1)
		total := 0
		b.until("a due message is woken", func() bool {
			woken, next := b.wake("a", to, 100)
			if total += woken; total == 2 {
				b.wantNext("WakeDelayed", next, long/2)
			}
			return total >= 2
		})
		b.wantOut("WakeDelayed", to, "tried", "new")
		got := b.outAs(to, "tried")
		if got.Changed.Before(tried.Changed) {
			b.failf("WakeDelayed moved Changed back from %v to %v", tried.Changed, got.Changed)
		}
		tried.State, tried.Changed = to, got.Changed
		b.wantSameOut("WakeDelayed", got, tried)
		b.wantSameOut("WakeDelayed of others", b.outAs(store.Delayed, "late"), late)
		if m := b.outAs(to, "new"); m.Changed.Before(m.Created) {
			b.failf("a message that was woken has Changed %v, and was created %v", m.Changed, m.Created)
		}
		b.tidy()
	}
}

func outboxWakesOwn[Tx any](b *txBench[Tx]) {
	b.put(delayed(b.outIn(1, "1", "k"), short), delayed(b.outIn(2, "2", "k"), short), delayed(b.outIn(3, "3", "k"), short),
		delayed(b.outIn(4, "4", "k"), long/4), delayed(b.outIn(5, "5", "k"), long/2))
	b.lease("a", long, 1, 3, 5)
	b.lease("b", long, 2, 4)
	b.until("messages are due", func() bool {
		for _, m := range b.outgoing(store.OutgoingQuery{State: store.Delayed, IDs: []string{"1", "2", "3"}}) {
			if m.Delay > 0 {
				return false
			}
		}
		return true
	})
	if woken, next := b.wake("c", store.Pending, 9); woken != 0 {
		b.failf("WakeDelayed by a relay without lanes woke %d", woken)
	} else {
		b.wantNext("WakeDelayed by a relay without lanes", next, time.Hour)
	}
	woken, next := b.wake("a", store.Pending, 9)
	b.wantOut("WakeDelayed", store.Pending, "1", "3")
	if woken != 2 {
		b.failf("WakeDelayed returned %d for 2 messages", woken)
	}
	b.wantNext("WakeDelayed", next, long/2)
	b.wantOut("WakeDelayed", store.Delayed, "2", "4", "5")
	_, next = b.wake("b", store.Pending, 9)
	b.wantOut("WakeDelayed by both", store.Pending, "1", "2", "3")
	b.wantNext("WakeDelayed by the other", next, long/4)
}

func outboxWakesMost[Tx any](b *txBench[Tx]) {
	b.lease("a", long, 1, 2)
	var ms []store.Outgoing
	for i := range 5 {
		ms = append(ms, delayed(b.outIn(1+i%2, fmt.Sprint(i), "k"), short))
	}
	b.put(ms...)
	b.until("messages are due", func() bool {
		due := 0
		for _, m := range b.outgoing(store.OutgoingQuery{State: store.Delayed}) {
			if m.Delay <= 0 {
				due++
			}
		}
		return due == len(ms)
	})
	for left := len(ms); left > 0; {
		woken, next := b.wake("a", store.Pending, 2)
		is := len(b.outgoing(store.OutgoingQuery{State: store.Delayed}))
		if woken != min(2, left) || is != left-woken {
			b.failf("of %d messages that are due, WakeDelayed with a limit of 2 returned %d, and %d are left",
				left, woken, is)
		}
		if left = is; left > 0 && next > 0 {
			b.failf("%d more messages are due, and WakeDelayed returned %v for the next", left, next)
		}
	}
	woken, next := b.wake("a", store.Pending, 2)
	if woken != 0 {
		b.failf("WakeDelayed woke %d of nothing", woken)
	}
	b.wantNext("a WakeDelayed of nothing", next, time.Hour)
}

func outboxNext[Tx any](b *txBench[Tx]) {
	b.lease("a", long, 1, 2)
	want := func(after string, next time.Duration) {
		woken, got := b.wake("a", store.Pending, 10)
		if woken != 0 {
			b.failf("after %s WakeDelayed woke %d that were not due", after, woken)
		}
		b.wantNext(after, got, next)
	}
	want("nothing", time.Hour)
	b.put(delayed(b.outIn(1, "far", "k"), 3*time.Hour))
	want("a message that is due in 3 hours", time.Hour)
	b.put(delayed(b.outIn(2, "half", "k"), 30*time.Minute), delayed(b.outIn(1, "quarter", "k"), 15*time.Minute))
	want("two that are due in 30 and 15 minutes", 15*time.Minute)
	b.changes(1, "RemoveOutgoing", b.removed(people, b.outAs(store.Delayed, "quarter")))
	want("the end of the one that is due first", 30*time.Minute)
	m := b.outAs(store.Delayed, "half")
	b.changes(1, "MoveOutgoing", b.move1(people, store.Stuck, m))
	want("a move of the one that is due first", time.Hour)
	b.wantOut("WakeDelayed", store.Delayed, "far")
}

func outboxMovedToDelayed[Tx any](b *txBench[Tx]) {
	b.lease("a", long, 1)
	b.put(b.outIn(1, "soon", "k"), b.outIn(1, "late", "k"), b.outIn(1, "now", "k"),
		delayed(b.outIn(1, "waits", "k"), short))
	b.until("time passes", func() bool { return b.outAs(store.Delayed, "waits").Delay < -2*short })
	for id, delay := range map[string]time.Duration{"soon": 2 * short, "late": long / 2, "now": 0} {
		m := b.outAs(store.Pending, id)
		m.Delay = delay
		b.changes(1, "MoveOutgoing to Delayed", b.move1(b.token("a"), store.Delayed, m))
		if got := b.outAs(store.Delayed, id).Delay; got > delay || got < delay-10*b.patience {
			b.failf("a message that was moved to Delayed for %v has a Delay of %v", delay, got)
		}
	}
	waits := b.outAs(store.Delayed, "waits")
	waits.Delay = long
	b.changes(1, "MoveOutgoing to Held", b.move1(b.token("a"), store.Held, waits))
	waits = b.outAs(store.Held, "waits")
	waits.Delay = long / 4
	b.changes(1, "MoveOutgoing to Delayed", b.move1(b.token("a"), store.Delayed, waits))
	b.until("a due message is woken", func() bool {
		_, next := b.wake("a", store.Pending, 9)
		if len(b.outgoing(store.OutgoingQuery{})) < 2 {
			return false
		}
		b.wantNext("WakeDelayed", next, long/4)
		return true
	})
	b.wantOut("WakeDelayed", store.Pending, "soon", "now")
	b.wantOut("WakeDelayed", store.Delayed, "late", "waits")
}
