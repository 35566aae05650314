package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/store"
)

func outboxFlightRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/in-flight",
			"Messages of a transaction in flight are not visible.",
			outboxInFlight[Tx]},
		{"outbox/commit-order",
			"A message that commits late is visible, even if a message with a higher Seq was already sent.",
			outboxCommitOrder[Tx]},
		{"outbox/context",
			"A call whose context has ended fails and changes nothing.",
			outboxContext[Tx]},
		{"outbox/race",
			"With several writers and relays at once, each message is sent once, in the order of its key.",
			outboxRace[Tx]},
	}
}

// putBeside puts a message within a short time, or fails: some databases block
// all writes while a transaction is in flight.
func (b *txBench[Tx]) putBeside(m store.Outgoing) error {
	ctx, cancel := context.WithTimeout(b, inFlightWait)
	defer cancel()
	tx, err := b.h.Begin(ctx)
	if err != nil {
		return err
	}
	if err := b.outbox(1).PutTx(ctx, tx, []store.Outgoing{m}); err != nil {
		_ = b.h.Rollback(context.WithoutCancel(b), tx) // it may already be broken
		return err
	}
	return b.h.Commit(b, tx)
}

func outboxInFlight[Tx any](b *txBench[Tx]) {
	before := b.depths(1 << 20)
	b.inTx(true, func(tx Tx) {
		ms := []store.Outgoing{b.outIn(1, "1", "k"), delayed(b.outIn(1, "2", "k"), long)}
		b.must("PutTx", b.outbox(0).PutTx(b, tx, ms))
		for _, state := range outgoingStates {
			b.wantOut("PutTx in a transaction in flight", state)
		}
		b.wantIDs("PutTx in a transaction in flight", b.chunk(1))
		b.wantDepths("PutTx in a transaction in flight", before, nil)
	})
	b.wantIDs("the commit", b.chunk(1), "1")
}

func outboxCommitOrder[Tx any](b *txBench[Tx]) {
	relay := b.token("a")
	b.lease("a", long, 3)
	b.inTx(true, func(tx Tx) {
		first := []store.Outgoing{b.outIn(3, "first", "k"), delayed(b.outIn(3, "delayed", "k"), short)}
		b.must("PutTx", b.outbox(0).PutTx(b, tx, first))
		for _, id := range []string{"second", "third"} {
			if b.putBeside(b.outIn(3, id, id)) != nil {
				return
			}
			ms := b.chunk(3)
			b.wantIDs("a commit beside a transaction in flight", ms, id)
			b.changes(1, "Sent beside a transaction in flight", b.sent(relay, store.Delete, ms...))
		}
		b.must("PutTx beside a transaction in flight", b.putBeside(b.outIn(3, "fourth", "fourth")))
	})
	ms := b.chunk(3)
	inOrder := func(a, b store.Outgoing) int { return cmp.Compare(a.Seq, b.Seq) }
	if !slices.IsSortedFunc(ms, inOrder) || !slices.Contains(outgoingIDs(ms), "first") {
		b.failf("after the late commit of the first message the lane has %q", outgoingIDs(ms))
	}
	b.changes(len(ms), "Sent", b.sent(relay, store.Delete, ms...))
	b.until("a due message is woken", func() bool {
		woken, _ := b.wake("a", store.Pending, 9)
		return woken == 1
	})
	b.wantIDs("Sent and WakeDelayed", b.chunk(3), "delayed")
}

func outboxContext[Tx any](b *txBench[Tx]) {
	ended, cancel := context.WithCancel(b)
	cancel()
	b.lease("a", long, 1)
	b.put(b.outIn(1, "1", "k"), delayed(b.outIn(1, "2", "k"), short))
	b.putAs(store.Published, b.outIn(1, "3", "k"))
	ms := b.chunk(1)
	relay := b.token("a")
	for name, call := range map[string]func() error{
		"LeaseLanes":     func() error { _, err := b.outbox(0).LeaseLanes(ended, relay, 2*long, []int{1, 2}); return err },
		"ReleaseLanes":   func() error { return b.outbox(0).ReleaseLanes(ended, relay, nil) },
		"Outgoing":       func() error { _, err := b.outbox(0).Outgoing(ended, store.OutgoingQuery{}); return err },
		"Sent":           func() error { _, err := b.outbox(0).Sent(ended, relay, ms, store.Delete); return err },
		"MoveOutgoing":   func() error { _, err := b.outbox(0).MoveOutgoing(ended, relay, ms, store.Stuck); return err },
		"WakeDelayed":    func() error { _, _, err := b.outbox(0).WakeDelayed(ended, relay, store.Held, 9); return err },
		"RemoveOutgoing": func() error { _, err := b.outbox(0).RemoveOutgoing(ended, relay, ms); return err },
		"ForgetOutgoing": func() error { _, err := b.outbox(0).ForgetOutgoing(ended, 0, 9); return err },
		"OutboxDepth":    func() error { _, err := b.outbox(0).OutboxDepth(ended, 9); return err },
	} {
		if call() == nil {
			b.failf("%s succeeds with a context that has ended", name)
		}
		for state, id := range map[store.OutgoingState]string{store.Pending: "1", store.Delayed: "2", store.Published: "3"} {
			b.wantOut(name+" with a context that had ended", state, id)
		}
		b.wantLeases(name+" with a context that had ended", b.lease("b", long), long, map[int]string{1: "a"})
	}
	b.inTx(false, func(tx Tx) {
		if b.outbox(0).PutTx(ended, tx, []store.Outgoing{b.out("4", "k")}) == nil {
			b.failf("PutTx succeeds with a context that has ended")
		}
	})
}

// tally counts what the relays of a race have sent.
type tally struct {
	mu    sync.Mutex
	rows  map[string]bool // by lane and Seq
	ids   map[string]bool
	keys  map[string][]string // the IDs of each ordering key
	again string              // a row that was read after it was sent
}

func (t *tally) add(ms []store.Outgoing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range ms {
		row := fmt.Sprint(m.Lane, " ", m.Seq)
		if t.rows[row] {
			t.again = row
		}
		t.rows[row], t.ids[m.Message.ID] = true, true
		t.keys[m.Message.OrderingKey] = append(t.keys[m.Message.OrderingKey], m.Message.ID)
	}
}

func (t *tally) sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ids)
}

func outboxRace[Tx any](b *txBench[Tx]) {
	const writers, transactions, each, relayers = 4, 8, 5, 4
	t := &tally{rows: make(map[string]bool), ids: make(map[string]bool), keys: make(map[string][]string)}
	defer b.tokensLeave(relayers)
	b.together(writers+relayers, func(i int) {
		if i < writers {
			for n := range transactions {
				b.persist("PutTx", func() error { return b.putOnce(i, b.racing(i, n, each)) })
			}
			return
		}
		b.relayAll(t, i-writers, relayers, writers*transactions*each)
	})
	if t.again != "" || t.sent() != writers*transactions*each {
		b.failf("of %d messages %d were sent; the row %q was read after it was sent", writers*transactions*each, t.sent(), t.again)
	}
	for key, ids := range t.keys {
		for i := range ids[1:] {
			if strings.Compare(ids[i], ids[i+1]) > 0 {
				b.failf("messages of the ordering key %q were read in the order %q", key, ids)
			}
		}
	}
	b.wantOut("a race", store.Pending)
}

// racing returns the messages of one transaction of a writer, with its ordering
// keys.
func (b *txBench[Tx]) racing(writer, n, each int) (ms []store.Outgoing) {
	for j := range each {
		id := fmt.Sprintf("writer %d transaction %02d message %d", writer, n, j)
		ms = append(ms, b.out(id, fmt.Sprint("key ", writer, (n+j)%3)))
	}
	return ms
}

func (b *txBench[Tx]) putOnce(i int, ms []store.Outgoing) error {
	tx, err := b.h.Begin(b)
	if err != nil {
		return err
	}
	if err := b.outbox(i).PutTx(b, tx, ms); err != nil {
		_ = b.h.Rollback(context.WithoutCancel(b), tx) // it may already be broken
		return err
	}
	return b.h.Commit(b, tx)
}

// relayAll is one of several relays. It publishes from its lanes until all
// messages of the race were sent.
func (b *txBench[Tx]) relayAll(t *tally, i, of, total int) {
	var lanes []int
	for lane := i; lane < store.Lanes; lane += of {
		lanes = append(lanes, lane)
	}
	relay := b.token(fmt.Sprint(i))
	b.persist("LeaseLanes", func() error {
		_, err := b.outbox(i).LeaseLanes(b, relay, long, lanes)
		return err
	})
	tick := time.NewTicker(2 * short)
	defer tick.Stop()
	last, deadline := 0, time.Now().Add(b.patience)
	for n := 0; n < total && !b.failed(); n = t.sent() {
		if n > last {
			last, deadline = n, time.Now().Add(b.patience)
		}
		if time.Now().After(deadline) {
			b.failf("of %d messages %d were sent, and then none for %v", total, n, b.patience)
		}
		ms, err := b.outbox(i).Outgoing(b, store.OutgoingQuery{Lanes: lanes, Limit: 7, Topic: b.topic()})
		b.must("Outgoing", err)
		if len(ms) == 0 {
			<-tick.C
			continue
		}
		b.persist("Sent", func() error {
			_, err := b.outbox(i).Sent(b, relay, ms, store.Delete)
			return err
		})
		t.add(ms)
	}
}
