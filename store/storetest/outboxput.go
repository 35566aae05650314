package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

func outboxPutRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/exact",
			"A message comes back as it was put, with the fields that the store assigns.",
			outboxExact[Tx]},
		{"outbox/sealed",
			"A sealed message can be opened when it is read, in any State.",
			outboxSealed[Tx]},
		{"outbox/cause",
			"A message keeps the key of the unit of work that put it, in any State, and a query finds it by this key.",
			outboxCause[Tx]},
		{"outbox/large", "Bodies of several MiB are kept, or as large as the store declares.", outboxLarge[Tx]},
		{"outbox/commits",
			"PutTx commits with its transaction, and is rolled back with it.",
			outboxCommits[Tx]},
		{"outbox/slices",
			"After PutTx returns, its arguments belong to the caller again, even before the commit.",
			outboxSlices[Tx]},
		{"outbox/order",
			"Seq rises in each lane from insert to insert, also within one call. An ID may be put again.",
			outboxOrder[Tx]},
		{"outbox/lanes",
			"The lane of a message is store.Lane: of its ordering key, or of its ID if it has none.",
			outboxLanes[Tx]},
		{"outbox/invalid",
			"A message that can never be published is ErrInvalid.",
			outboxInvalid[Tx]},
		{"outbox/batches",
			"Many messages can be put, read, moved, sent and removed at once.",
			outboxBatches[Tx]},
	}
}

// hardOutgoing returns messages with all fields set that a store could lose.
func (b *txBench[Tx]) hardOutgoing() (ms []store.Outgoing) {
	for i, name := range b.hardNames() {
		m := store.Outgoing{Message: broker.Message{ID: b.consumer(name), Topic: b.consumer(name), Attempt: 9}}
		switch i % 3 {
		case 0:
			m.Message.OrderingKey, m.Message.Body = b.consumer(name), everyByte()
			m.Message.Header = map[string]string{"empty": "", "a-z.0_9": "ü\u2028<&>'\"\\ %_ $1 ? :x 🙂", "once-type": name,
				"long": strings.Repeat("é", 5000), strings.Repeat("n", 255): "a long name", "spaces": "  x  "}
			m.Message.Time = time.Date(2026, 2, 3, 4, 5, 6, 123456789, time.FixedZone("", 3600))
		case 1:
			m.Message.OrderingKey = name
			m.Message.Body, m.Message.Header = []byte{}, map[string]string{}
			m.Message.Time = time.Date(1815, 12, 10, 0, 0, 0, 0, time.UTC)
		}
		if i%2 == 0 {
			m.Delay = long
		}
		m.Cause = store.FormatCause(once.Key{Scope: name, Operation: "put", ID: name})
		// The store assigns the other fields.
		m.Lane, m.Seq, m.State, m.Attempts, m.Reason = 99, 12345, store.Stuck, 7, "reason"
		m.Created, m.Changed, m.LogPlace, m.LogMore = time.Unix(1, 0), time.Unix(1, 0), 77, true
		ms = append(ms, m)
	}
	return ms
}

func outboxExact[Tx any](b *txBench[Tx]) {
	ms := b.hardOutgoing()
	start := time.Now()
	b.put(ms...)
	var stored []store.Outgoing
	defer func() { _, _ = b.outbox(0).RemoveOutgoing(b, people, stored) }()
	for i, m := range ms {
		state := store.Pending
		if i%2 == 0 {
			state = store.Delayed
		}
		found := b.outgoing(store.OutgoingQuery{State: state, Topic: m.Message.Topic})
		stored = append(stored, found...)
		b.wantIDs("PutTx", found, m.Message.ID)
		got, want := found[0], store.Outgoing{Message: m.Message, Lane: store.Lane(&m.Message), State: state, Cause: m.Cause}
		want.Seq, want.Created = got.Seq, got.Created
		b.wantSameOut("PutTx", got, want)
		if got.Created.Before(start.Add(-long)) || got.Created.After(start.Add(long)) {
			b.failf("a message that was put now was created %v", got.Created)
		}
		if got.Delay > m.Delay || got.Delay <= 0 && m.Delay > 0 {
			b.failf("a message that was put with a Delay of %v has one of %v", m.Delay, got.Delay)
		}
	}
	if ms[0].Seq != 12345 || ms[0].State != store.Stuck || ms[0].Message.Attempt != 9 {
		b.failf("PutTx changed a message of its caller's")
	}
}

func outboxCause[Tx any](b *txBench[Tx]) {
	key := func(id string) string {
		return store.FormatCause(once.Key{Scope: "tenant <7> & \"8\"", Operation: "cause", ID: b.topic() + id})
	}
	by := func(m store.Outgoing, id string) store.Outgoing { m.Cause = key(id); return m }
	b.put(by(b.out("1", "k"), "a"), by(b.out("2", "k"), "b"), delayed(by(b.out("3", "k"), "a"), long), b.out("4", "k"))
	find := func(what string, id string, state store.OutgoingState, ids ...string) {
		found := b.outgoing(store.OutgoingQuery{State: state, Cause: key(id)})
		b.wantIDs(what, found, ids...)
		for _, m := range found {
			if m.Cause != key(id) {
				b.failf("%s: %q was put by %q, and came back as put by %q", what, m.Message.ID, key(id), m.Cause)
			}
		}
	}
	find("what a key has put", "a", store.Pending, "1")
	find("what a key has put, and is delayed", "a", store.Delayed, "3")
	find("what another key has put", "b", store.Pending, "2")
	find("what no key has put", "c", store.Pending)
	if none := b.outAs(store.Pending, "4"); none.Cause != "" {
		b.failf("a message that no unit of work has put has the cause %q", none.Cause)
	}
	b.changes(1, "MoveOutgoing", b.move1(people, store.Held, b.outAs(store.Pending, "1")))
	find("what a key has put, and is held", "a", store.Held, "1")
	b.changes(1, "Sent", b.sent(people, store.Keep, b.outAs(store.Pending, "2")))
	find("what a key has put, and was published", "b", store.Published, "2")
}

func outboxLarge[Tx any](b *txBench[Tx]) {
	m := b.out("large", "")
	m.Message.Body = bytes.Repeat([]byte("0123456789abcde\x00"), 3<<16)
	m.Message.Header = map[string]string{"large": strings.Repeat("x", 100<<10)}
	if most := b.h.MaxBody; most > 0 {
		m.Message.Body, m.Message.Header = m.Message.Body[:min(len(m.Message.Body), most)], nil
	}
	b.put(m)
	got := b.outAs(store.Pending, "large")
	if !bytes.Equal(got.Message.Body, m.Message.Body) || !maps.Equal(got.Message.Header, m.Message.Header) {
		b.failf("a body of %d bytes came back with %d", len(m.Message.Body), len(got.Message.Body))
	}
}

func outboxCommits[Tx any](b *txBench[Tx]) {
	both := func(tx Tx) {
		b.must("PutTx", b.outbox(0).PutTx(b, tx, []store.Outgoing{b.out("1", "k"), delayed(b.out("2", "k"), long)}))
		b.must("Effect", b.effect(tx, "row"))
	}
	b.inTx(false, both)
	b.wantOut("a rollback", store.Pending)
	b.wantOut("a rollback", store.Delayed)
	b.inTx(true, both)
	b.wantOut("a commit", store.Pending, "1")
	b.wantOut("a commit", store.Delayed, "2")
	b.wantEffects("row", 1)
	b.inTx(true, func(tx Tx) { b.must("PutTx of nothing", b.outbox(0).PutTx(b, tx, nil)) })
}

func outboxSlices[Tx any](b *txBench[Tx]) {
	m := b.out("1", "k")
	m.Message.Body, m.Message.Header = []byte("body"), map[string]string{"name": "value"}
	ms := []store.Outgoing{m, b.out("2", "k")}
	b.inTx(true, func(tx Tx) {
		b.must("PutTx", b.outbox(0).PutTx(b, tx, ms))
		copy(m.Message.Body, "lost")
		m.Message.Header["name"] = "lost"
		clear(ms)
	})
	got := b.outAs(store.Pending, "1").Message
	if string(got.Body) != "body" || got.Header["name"] != "value" {
		b.failf("a change after PutTx is in the message that was put: %q, %v", got.Body, got.Header)
	}
	b.wantOut("a change of the slice", store.Pending, "1", "2")
	copy(got.Body, "read")
	got.Header["name"] = "read"
	if again := b.outAs(store.Pending, "1").Message; string(again.Body) != "body" || again.Header["name"] != "value" {
		b.failf("a reader's change of a message is in the store: %q, %v", again.Body, again.Header)
	}
}

func outboxOrder[Tx any](b *txBench[Tx]) {
	in := func(id string) store.Outgoing { return b.outIn(7, id, id) }
	b.put(in("9"), b.outIn(3, "x", "x"), in("1"), b.outIn(8, "y", "y"), in("5"))
	b.inTx(false, func(tx Tx) { b.must("PutTx", b.outbox(0).PutTx(b, tx, []store.Outgoing{in("7")})) })
	b.inTx(true, func(tx Tx) {
		b.must("PutTx", b.outbox(0).PutTx(b, tx, []store.Outgoing{in("4"), in("3")}))
		b.must("PutTx", b.outbox(0).PutTx(b, tx, []store.Outgoing{in("0"), in("3")}))
	})
	ms := b.chunk(7)
	b.wantIDs("several PutTx", ms, "9", "1", "5", "4", "3", "0", "3")
	for i, m := range ms[1:] {
		if m.Seq <= ms[i].Seq {
			b.failf("in one lane Seq %d follows Seq %d", m.Seq, ms[i].Seq)
		}
	}
}

func outboxLanes[Tx any](b *txBench[Tx]) {
	var ms []store.Outgoing
	for lane := range store.Lanes {
		ms = append(ms, b.outIn(lane, fmt.Sprint("keyed ", lane), "k"))
	}
	for i := range 2 * store.Lanes {
		ms = append(ms, b.out(fmt.Sprint("free ", i), ""))
	}
	b.put(ms...)
	seen := 0
	for lane := range store.Lanes {
		var want []string
		for i := range ms {
			if store.Lane(&ms[i].Message) == lane {
				want = append(want, ms[i].Message.ID)
			}
		}
		got := b.chunk(lane)
		b.wantIDs(fmt.Sprint("lane ", lane), got, want...)
		for _, m := range got {
			if m.Lane != lane {
				b.failf("a query for lane %d returned one of lane %d", lane, m.Lane)
			}
		}
		seen += len(got)
	}
	if seen != len(ms) {
		b.failf("of %d messages, the lanes have %d", len(ms), seen)
	}
}

func outboxInvalid[Tx any](b *txBench[Tx]) {
	no := b.out("", "")
	topic, key, control, header, value := b.out("1", ""), b.out("1", strings.Repeat("k", 255)), b.out("1\n", ""),
		b.out("1", ""), b.out("1", "")
	topic.Message.Topic = ""
	header.Message.Header = map[string]string{"Upper": "x"}
	value.Message.Header = map[string]string{"name": "a\x00b"}
	for name, m := range map[string]store.Outgoing{"no ID": no, "no topic": topic, "too long an ordering key": key,
		"a control character": control, "a bad header": header, "a bad value": value} {
		b.inTx(false, func(tx Tx) {
			err := b.outbox(0).PutTx(b, tx, []store.Outgoing{b.out("good", ""), m})
			b.wantErr("PutTx of a message with "+name, err, once.ErrInvalid)
		})
	}
	b.wantOut("messages that were refused", store.Pending)
}

func outboxBatches[Tx any](b *txBench[Tx]) {
	n := 1000
	if b.h.Slow {
		n = 100
	}
	var ms []store.Outgoing
	var ids []string
	for i := range n {
		m := b.out(fmt.Sprint(i), fmt.Sprint(i%7))
		m.Message.Body = bytes.Repeat([]byte{byte(i)}, 300)
		ms, ids = append(ms, m), append(ids, m.Message.ID)
	}
	b.put(ms...)
	all := make([]int, store.Lanes)
	for i := range all {
		all[i] = i
	}
	b.lease("a", long, all...)
	read := b.chunk(all...)
	if got := outgoingIDs(read); len(got) != n {
		b.failf("of %d messages, %d came back", n, len(got))
	}
	page := b.outgoing(store.OutgoingQuery{IDs: ids, Limit: n})
	if len(page) != n {
		b.failf("a query for %d IDs returned %d messages", n, len(page))
	}
	relay := b.token("a")
	b.changes(n, "MoveOutgoing of many", b.move1(relay, store.Held, read...))
	read = b.outgoing(store.OutgoingQuery{State: store.Held, Limit: n})
	b.changes(n/2, "RemoveOutgoing of half", b.removed(relay, read[:n/2]...))
	b.changes(n/2, "Sent of many, of which half are gone", b.sent(relay, store.Keep, read...))
	left := b.outgoing(store.OutgoingQuery{State: store.Published, Limit: n})
	if !slices.Equal(outgoingIDs(left), outgoingIDs(read[n/2:])) {
		b.failf("of %d messages, %d were sent, and %d are published", n, n/2, len(left))
	}
	b.put(ms...)
	b.changes(n, "Sent of many", b.sent(relay, store.Delete, b.chunk(all...)...))
	b.wantOut("Sent of many", store.Pending)
}
