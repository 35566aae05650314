package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// handOverRules are those of a [store.HandOver].
func handOverRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/hand-over",
			"HandOver ends messages in any State, as Sent does, and shelves their rows as they are, in the order of the slices.",
			handOver[Tx]},
		{"outbox/hand-over-again",
			"HandOver skips a row that is on the shelf already, and ends its message.",
			handOverAgain[Tx]},
		{"outbox/hand-over-fenced",
			"A message that Sent would not change is left alone, and its rows are not shelved. Others are handed over, and the result says which.",
			handOverFenced[Tx]},
		{"outbox/hand-over-order",
			"If a message is left alone, so are later ones of its ordering key.",
			handOverOrder[Tx]},
		{"outbox/hand-over-invalid",
			"If a row or the ending is invalid, or messages and rows are not as many, HandOver is once.ErrInvalid, and nothing is changed.",
			handOverInvalid[Tx]},
		{"outbox/hand-over-race",
			"Of several equal calls of HandOver at once, one hands over each message, and at no moment is a message both in the outbox and on the shelf.",
			handOverRace[Tx]},
	}
}

func (b *txBench[Tx]) handOver(i int) store.HandOver {
	return capability[store.HandOver](b.bench, b.txSpread(i))
}

// queued returns the row of each message for a consumer.
func queued(consumer string, ms []store.Outgoing) (rows [][]store.Shelved) {
	for _, m := range ms {
		rows = append(rows, []store.Shelved{store.NewQueued(consumer, m.Message.ID, m.Message)})
	}
	return rows
}

// hands calls HandOver with a row of each message for a consumer.
func (b *txBench[Tx]) hands(want, doing string, relay [16]byte, then store.Ending, consumer string,
	ms ...store.Outgoing) {

	handed, err := b.handOver(2).HandOver(b, relay, ms, queued(consumer, ms), then)
	b.must(doing, err)
	if got := fmt.Sprint(handed); got != want {
		b.failf("%s returned %s, want %s", doing, got, want)
	}
}

func (b *txBench[Tx]) wantQueue(doing, consumer string, want ...string) {
	b.wantShelved(doing, store.ShelfQuery{Consumer: store.QueueOf(consumer)}, want...)
}

func handOver[Tx any](b *txBench[Tx]) {
	first, second := b.consumer("first"), b.consumer("second")
	var order []string
	for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		for _, state := range outgoingStates[:store.Published] {
			id := fmt.Sprint("then ", int(then), ", was ", state)
			one, two := b.out(id, "k"), b.out(id+", too", "")
			one.Message.Body, one.Message.Header = everyByte(), map[string]string{"a": "é"}
			b.putAs(state, one, two, b.out("behind "+id, "k"))
			ms := []store.Outgoing{b.outAs(state, id), b.outAs(state, id+", too")}
			rows := queued(first, ms)
			rows[0] = append(rows[0], queued(second, ms)[0]...)
			handed, err := b.handOver(2).HandOver(b, people, ms, rows, then)
			if err != nil || fmt.Sprint(handed) != "[true true]" {
				b.failf("HandOver returned %v, %v", handed, err)
			}
			for _, is := range outgoingStates {
				left := b.outgoing(store.OutgoingQuery{State: is, IDs: []string{id, id + ", too"}})
				if kept := is == store.Published && then == store.Keep; kept != (len(left) == 2) || !kept && len(left) > 0 {
					b.failf("after HandOver with ending %d, %d messages that were %v are %v", then, len(left), state, is)
				}
			}
			order = append(order, id, id+", too")
			b.wantQueue("HandOver", first, order...)
			for consumer, row := range map[string]store.Shelved{first: rows[0][0], second: rows[0][1]} {
				got := b.shelvedAs(store.QueueOf(consumer), id)
				row.Seq, row.Version, row.Created, row.Updated, row.Message.Attempt = got.Seq, 1, got.Created, got.Updated, 0
				b.wantSame("HandOver", got, row)
			}
			b.changes(1, "RemoveOutgoing", b.removed(people, b.outAs(state, "behind "+id)))
			if then == store.Keep {
				b.changes(2, "RemoveOutgoing", b.removed(people, b.outAs(store.Published, id), b.outAs(store.Published, id+", too")))
			}
		}
	}
	b.hands("[]", "HandOver of nothing", people, store.Delete, first)
}

func handOverAgain[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.put(b.out("1", "k"), b.out("2", "l"))
	ms := b.outgoing(store.OutgoingQuery{})
	b.must("Shelve", b.shelf(0).Shelve(b, queued(c, ms)[1]))
	before := b.shelvedAs(store.QueueOf(c), ms[1].Message.ID)
	b.hands("[true true]", "HandOver of a message that is on the shelf", people, store.Delete, c, ms...)
	b.wantOut("HandOver", store.Pending)
	b.wantQueue("HandOver", c, ms[1].Message.ID, ms[0].Message.ID)
	b.wantSame("HandOver", b.shelvedAs(store.QueueOf(c), ms[1].Message.ID), before)
}

func handOverFenced[Tx any](b *txBench[Tx]) {
	for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
		c := b.consumer(fmt.Sprint("then ", int(then)))
		b.put(b.outIn(1, "1", "k"), b.outIn(2, "2", "k"), b.outIn(1, "3", "l"), b.outIn(3, "4", "k"))
		b.lease("a", long, 1, 3)
		b.lease("b", long, 2)
		var ms []store.Outgoing
		for _, id := range []string{"1", "2", "3", "4"} {
			ms = append(ms, b.outAs(store.Pending, id))
		}
		b.changes(1, "MoveOutgoing of people", b.move1(people, store.Stuck, ms[2]))
		b.hands("[true false false true]",
			"HandOver of four, of which another relay has one, and people have parked one", b.token("a"), then, c, ms...)
		b.wantQueue("HandOver", c, "1", "4")
		b.wantOut("HandOver", store.Pending, "2")
		b.hands("[false true]", "HandOver by the other relay", b.token("b"), then, c, ms[0], ms[1])
		b.wantQueue("HandOver", c, "1", "4", "2")
		b.lease("c", long)
		stuck := b.outAs(store.Stuck, "3")
		b.hands("[false]", "HandOver by a relay without lanes", b.token("c"), then, c, stuck)
		b.hands("[true false]", "HandOver of a message twice", b.token("a"), then, c, stuck, stuck)
		b.wantQueue("HandOver", c, "1", "4", "2", "3")
		b.tidy()
	}
}

func handOverOrder[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.put(b.out("1", "k"), b.out("2", "k"), b.out("3", "l"), b.out("4", "k"), b.out("5", ""), b.out("6", ""))
	var ms []store.Outgoing
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		ms = append(ms, b.outAs(store.Pending, id))
	}
	b.changes(2, "MoveOutgoing", b.move1(people, store.Stuck, ms[1], ms[4]))
	b.hands("[true false true false false true]", "HandOver of three messages of a key, of which the second is parked",
		people, store.Delete, c, ms...)
	b.wantOut("HandOver", store.Pending, "4")
	b.wantQueue("HandOver", c, "1", "3", "6")
}

func handOverInvalid[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.put(b.out("1", "k"), b.out("2", "l"))
	ms := b.outgoing(store.OutgoingQuery{})
	good := queued(c, ms)
	state := slices.Clone(good[1])
	state[0].State = 99
	nobody := slices.Clone(good[1])
	nobody[0].Consumer = ""
	for what, call := range map[string]func() ([]bool, error){
		"a row in no state": func() ([]bool, error) {
			return b.handOver(0).HandOver(b, people, ms, [][]store.Shelved{good[0], state}, store.Delete)
		},
		"a row of nobody": func() ([]bool, error) {
			return b.handOver(0).HandOver(b, people, ms, [][]store.Shelved{good[0], nobody}, store.Delete)
		},
		"an unknown ending": func() ([]bool, error) { return b.handOver(0).HandOver(b, people, ms, good, 9) },
		"too few rows":      func() ([]bool, error) { return b.handOver(0).HandOver(b, people, ms, good[:1], store.Delete) },
	} {
		_, err := call()
		b.wantErr("HandOver with "+what, err, once.ErrInvalid)
		b.wantOut("HandOver with "+what, store.Pending, "1", "2")
		b.wantQueue("HandOver with "+what, c)
	}
}

// handOverRace compares counts. A call that fails and is repeated may have handed
// over messages before, so counts may be too low.
func handOverRace[Tx any](b *txBench[Tx]) {
	const n, messages = 8, 20
	c := b.consumer("a")
	for i := range messages {
		b.put(b.outIn(i%3, fmt.Sprint(i), fmt.Sprint(i)))
	}
	ms := b.chunk(0, 1, 2)
	var sum, repeats, left atomic.Int64
	left.Store(n)
	b.together(n+1, func(i int) {
		if i == n {
			for more := true; more; time.Sleep(time.Millisecond) {
				more = left.Load() > 0
				b.nowhereTwice(c)
			}
			return
		}
		defer left.Add(-1)
		b.persist("HandOver", func() error {
			handed, err := b.handOver(i).HandOver(b, people, ms, queued(c, ms), store.Delete)
			for _, is := range handed {
				if is {
					sum.Add(1)
				}
			}
			if err != nil {
				repeats.Add(1)
			}
			return err
		})
	})
	if got := sum.Load(); got > messages || got < messages && repeats.Load() == 0 {
		b.failf("%d calls of HandOver at once, for the same %d messages, handed over %d", n, messages, got)
	}
	b.wantOut("HandOver", store.Pending)
	if rows := b.shelved(store.ShelfQuery{Consumer: store.QueueOf(c)}); len(rows) != messages {
		b.failf("after HandOver of %d messages, %d are on the shelf", messages, len(rows))
	}
}

// nowhereTwice checks that no message that was on the shelf is in the outbox, too.
func (b *txBench[Tx]) nowhereTwice(consumer string) {
	there := make(map[string]bool)
	for _, row := range b.shelved(store.ShelfQuery{Consumer: store.QueueOf(consumer), Bodiless: true}) {
		there[row.Message.ID] = true
	}
	for _, m := range b.outgoing(store.OutgoingQuery{Bodiless: true}) {
		if there[m.Message.ID] {
			b.failf("message %s is on the shelf, and still in the outbox", m.Message.ID)
		}
	}
}
