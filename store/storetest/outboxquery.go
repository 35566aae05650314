package storetest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/effectively-once/once/store"
)

func outboxQueryRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/selects",
			"Each field of an OutgoingQuery selects exactly, and several fields select what all of them do.",
			outboxSelects[Tx]},
		{"outbox/seq-order",
			"Messages come by Seq, whatever Lanes the query has.",
			outboxSeqOrder[Tx]},
		{"outbox/pages",
			"Pages that continue after the last Seq of the page before are complete and have no repeats.",
			outboxPages[Tx]},
		{"outbox/most-bytes",
			"A page ends before its bodies exceed MaxBytes, but has at least one message.",
			outboxMaxBytes[Tx]},
		{"outbox/bodiless",
			"A Bodiless query omits bodies and headers, and nothing else.",
			outboxBodiless[Tx]},
		{"outbox/heads",
			"Heads selects the first message in the State of each ordering key, and all messages without one.",
			outboxHeads[Tx]},
		{"outbox/largest-page", "A query returns at most 20,000 messages.", outboxLargestPage[Tx]},
	}
}

func outboxSelects[Tx any](b *txBench[Tx]) {
	in := func(id, key string) store.Outgoing {
		m := b.out(id, "")
		m.Message.OrderingKey = key
		return m
	}
	topic := in("5", "K")
	topic.Message.Topic = b.consumer("Topic")
	b.put(in("1", "k"), in("3", "k"))
	b.put(in("2", "k "))
	b.put(in("4", ""), topic, in("6 ", "k"), in("six", "é"))
	defer func() { b.removed(people, b.outgoing(store.OutgoingQuery{Topic: topic.Message.Topic})...) }()
	b.changes(1, "MoveOutgoing", b.move1(people, store.Held, b.outAs(store.Pending, "3")))
	second := b.outAs(store.Pending, "2")
	mine, other := b.topic(), topic.Message.Topic
	for _, want := range []struct {
		q   store.OutgoingQuery
		ids []string
	}{
		{store.OutgoingQuery{Topic: mine}, []string{"1", "2", "4", "6 ", "six"}},
		{store.OutgoingQuery{Topic: other}, []string{"5"}},
		{store.OutgoingQuery{Topic: mine + " "}, nil},
		{store.OutgoingQuery{Topic: b.consumer("TOPIC")}, nil},
		{store.OutgoingQuery{State: store.Held}, []string{"3"}},
		{store.OutgoingQuery{State: store.Delayed}, nil},
		{store.OutgoingQuery{State: store.Stuck}, nil},
		{store.OutgoingQuery{State: store.Published}, nil},
		{store.OutgoingQuery{IDs: []string{"4", "none", "1", "3"}}, []string{"1", "4"}},
		{store.OutgoingQuery{IDs: []string{"6"}}, nil},
		{store.OutgoingQuery{IDs: []string{"6 ", "SIX"}}, []string{"6 "}},
		{store.OutgoingQuery{OrderingKey: "k"}, []string{"1", "6 "}},
		{store.OutgoingQuery{OrderingKey: "k "}, []string{"2"}},
		{store.OutgoingQuery{OrderingKey: "K"}, nil},
		{store.OutgoingQuery{OrderingKey: "e"}, nil},
		{store.OutgoingQuery{OrderingKey: "é"}, []string{"six"}},
		{store.OutgoingQuery{After: second.Seq}, []string{"4", "6 ", "six"}},
		{store.OutgoingQuery{After: second.Seq - 1, Limit: 1}, []string{"2"}},
		{store.OutgoingQuery{Lanes: []int{second.Lane}, OrderingKey: "k "}, []string{"2"}},
		{store.OutgoingQuery{Lanes: []int{(second.Lane + 1) % store.Lanes}, OrderingKey: "k "}, nil},
		{store.OutgoingQuery{Lanes: []int{second.Lane}, OrderingKey: "k ", Topic: mine, IDs: []string{"1", "2"},
			After: second.Seq - 1, Limit: 1, MaxBytes: 1}, []string{"2"}},
		{store.OutgoingQuery{Lanes: []int{second.Lane}, OrderingKey: "k ", After: second.Seq}, nil},
	} {
		b.wantAnyOrder(fmt.Sprintf("a query for %+v", want.q), b.outgoing(want.q), want.ids...)
	}
	all, err := b.outbox(1).Outgoing(b, store.OutgoingQuery{After: second.Seq - 1, Limit: 1000})
	b.must("Outgoing", err)
	seen := make(map[string]bool)
	for _, m := range all {
		seen[m.Message.Topic] = true
	}
	if !seen[mine] || !seen[other] {
		b.failf("a query for all topics returned %v", seen)
	}
}

func outboxSeqOrder[Tx any](b *txBench[Tx]) {
	type row struct {
		id   string
		lane int
	}
	var rows []row
	for i := range 4 {
		for _, lane := range []int{9, 2, 13, 5} {
			rows = append(rows, row{fmt.Sprintf("%d in %d", i, lane), lane})
			b.put(b.outIn(lane, rows[len(rows)-1].id, rows[len(rows)-1].id))
		}
	}
	for _, lanes := range [][]int{nil, {9, 2, 13, 5}, {2, 5, 9, 13}, {13, 9, 5, 2}, {5, 0, 13}, {13, 2, 13}, {2}, {1, 3}} {
		var want []string
		for _, r := range rows {
			if lanes == nil || slices.Contains(lanes, r.lane) {
				want = append(want, r.id)
			}
		}
		for _, limit := range []int{0, 1, 5, 20_000} {
			got := b.outgoing(store.OutgoingQuery{Lanes: lanes, Limit: limit})
			if limit == 0 {
				limit = 100
			}
			b.wantIDs(fmt.Sprintf("a query for %d of the lanes %v", limit, lanes), got, want[:min(limit, len(want))]...)
		}
	}
}

func outboxPages[Tx any](b *txBench[Tx]) {
	const n = 107
	var ms []store.Outgoing
	for i := range n {
		ms = append(ms, b.outIn([]int{4, 11, 4}[i%3], fmt.Sprint(i), fmt.Sprint(i%5)))
	}
	b.put(ms...)
	for _, lanes := range [][]int{nil, {4}, {11}, {11, 4}} {
		all := b.outgoing(store.OutgoingQuery{Lanes: lanes, Limit: 1000})
		if len(lanes) != 1 && len(all) != n {
			b.failf("a page of 1,000 of %d messages has %d", n, len(all))
		}
		for _, size := range []int{20, 0, -1, 1000, 20_000} {
			var got []string
			after, left := int64(0), len(all)
			for {
				page := b.outgoing(store.OutgoingQuery{Lanes: lanes, After: after, Limit: size})
				want := size
				if size <= 0 {
					want = 100
				}
				if len(page) != min(want, left) {
					b.failf("a page with a Limit of %d has %d of %d messages that are left", size, len(page), left)
				}
				if len(page) == 0 {
					break
				}
				got = append(got, outgoingIDs(page)...)
				after, left = page[len(page)-1].Seq, left-len(page)
			}
			if !slices.Equal(got, outgoingIDs(all)) {
				b.failf("in pages of %d, lanes %v have %q, and all at once %q", size, lanes, got, outgoingIDs(all))
			}
		}
	}
}

func outboxMaxBytes[Tx any](b *txBench[Tx]) {
	var ms []store.Outgoing
	sizes := []int{1000, 10, 10, 500, 1, 0, 0, 2}
	for i, size := range sizes {
		lane := 6
		if i > 4 {
			lane = 1
		}
		m := b.outIn(lane, fmt.Sprint(i), "k")
		m.Message.Body = bytes.Repeat([]byte("\xff"), size)
		m.Message.Header = map[string]string{"is": "not counted"}
		ms = append(ms, m)
	}
	b.put(ms...)
	first := b.outAs(store.Pending, "0").Seq
	for _, want := range []struct {
		after int64
		most  int
		ids   []string
	}{
		{0, 1, []string{"0"}},
		{0, 1009, []string{"0"}},
		{0, 1010, []string{"0", "1"}},
		{first, 19, []string{"1"}},
		{first, 20, []string{"1", "2"}},
		{first, 21, []string{"1", "2"}}, // not the small one after a large one
		{first, 520, []string{"1", "2", "3"}},
		{first, 521, []string{"1", "2", "3", "4", "5", "6"}},
		{first, 522, []string{"1", "2", "3", "4", "5", "6"}},
		{first, 523, []string{"1", "2", "3", "4", "5", "6", "7"}},
		{first, 0, []string{"1", "2", "3", "4", "5", "6", "7"}},
		{first, 1 << 30, []string{"1", "2", "3", "4", "5", "6", "7"}},
	} {
		q := store.OutgoingQuery{Lanes: []int{6, 1}, After: want.after, MaxBytes: want.most, Limit: 1000}
		b.wantIDs(fmt.Sprintf("a query for %d bytes, after %d", want.most, want.after), b.outgoing(q), want.ids...)
		// As relays query, for any topic. Earlier queries may have taught the store
		// that bodies are small.
		q.After = max(q.After, first-1)
		for _, limit := range []int{1 << 30, want.most} {
			q.MaxBytes = limit
			got, err := b.outbox(1).Outgoing(b, q)
			b.must("Outgoing", err)
			if limit == want.most {
				b.wantIDs(fmt.Sprintf("a relay's query for %d bytes, after %d", limit, q.After), got, want.ids...)
			}
			for _, m := range got {
				if size := sizes[int(m.Message.ID[0]-'0')]; len(m.Message.Body) != size {
					b.failf("message %s came with %d bytes of %d", m.Message.ID, len(m.Message.Body), size)
				}
			}
		}
	}
	size, n, all := 0, 0, b.outgoing(store.OutgoingQuery{Limit: 1000})
	for n < len(all) && size+len(all[n].Message.Body) <= 1021 {
		size += len(all[n].Message.Body)
		n++
	}
	b.wantIDs("a query for 1,021 bytes of all lanes", b.outgoing(store.OutgoingQuery{MaxBytes: 1021}),
		outgoingIDs(all[:n])...)
}

func outboxBodiless[Tx any](b *txBench[Tx]) {
	m := b.out("1", "k")
	m.Message.Body, m.Message.Header = everyByte(), map[string]string{"name": "value"}
	b.put(m)
	m = b.outAs(store.Pending, "1")
	m.Attempts, m.Reason = 3, "boom"
	b.changes(1, "MoveOutgoing", b.move1(people, store.Stuck, m))
	want := b.outAs(store.Stuck, "1")
	if len(want.Message.Body) != 256 || len(want.Message.Header) != 1 {
		b.failf("a query returned %s", showOutgoing(want))
	}
	want.Message.Body, want.Message.Header = nil, nil
	for _, lanes := range [][]int{nil, {want.Lane}} {
		ms := b.outgoing(store.OutgoingQuery{State: store.Stuck, Lanes: lanes, Bodiless: true})
		b.wantIDs("a Bodiless query", ms, "1")
		b.wantSameOut("a Bodiless query", ms[0], want)
	}
}

func outboxHeads[Tx any](b *txBench[Tx]) {
	b.putAs(store.Stuck, b.outIn(1, "stuck", "a"), b.outIn(1, "stuck too", "a"))
	b.putAs(store.Held, b.outIn(1, "a 1", "a"))
	b.putAs(store.Held, b.outIn(1, "b 1", "b"), b.outIn(2, "c 1", "c"), b.out("free 1", ""), b.outIn(1, "a 2", "a"),
		b.outIn(2, "c 2", "c"), b.outIn(1, "a 3", "a"), b.out("free 2", ""), b.outIn(1, "b 2", "b"), b.outIn(2, "C", "C"))
	heads := store.OutgoingQuery{State: store.Held, Heads: true}
	want := []string{"a 1", "b 1", "c 1", "free 1", "free 2", "C"}
	all := b.outgoing(heads)
	b.wantAnyOrder("a query for heads", all, want...)
	b.wantOut("a query for all", store.Held, "a 1", "b 1", "c 1", "free 1", "a 2", "c 2", "a 3", "free 2", "b 2", "C")
	stuck := store.OutgoingQuery{State: store.Stuck, Heads: true}
	b.wantIDs("a query for heads in another state", b.outgoing(stuck), "stuck")

	first := b.outAs(store.Held, "a 1")
	behind, two, keyed, laned := heads, heads, heads, heads
	behind.After, two.Limit = first.Seq, 2
	b.wantAnyOrder("a query for heads after the first", b.outgoing(behind), want[1:]...)
	b.wantIDs("a query for two heads", b.outgoing(two), outgoingIDs(all[:2])...)
	keyed.OrderingKey = first.Message.OrderingKey
	b.wantIDs("a query for the head of one key", b.outgoing(keyed), "a 1")
	laned.Lanes = []int{2, 1}
	got := b.outgoing(laned)
	got = slices.DeleteFunc(got, func(m store.Outgoing) bool { return m.Message.OrderingKey == "" })
	b.wantIDs("a query for the heads in two lanes", got, "a 1", "b 1", "c 1", "C")

	b.changes(1, "Sent", b.sent(people, store.Delete, first))
	b.wantAnyOrder("a query for heads when one is gone", b.outgoing(heads), "b 1", "c 1", "free 1", "a 2", "free 2", "C")
}

func outboxLargestPage[Tx any](b *txBench[Tx]) {
	if b.h.Slow {
		return
	}
	const largest, batch = 20_000, 1000
	for i := range largest/batch + 1 {
		var ms []store.Outgoing
		for j := range batch {
			ms = append(ms, b.out(fmt.Sprint(i, " ", j), ""))
		}
		b.put(ms...)
	}
	for _, limit := range []int{largest, largest + 1, 1 << 30} {
		got := b.outgoing(store.OutgoingQuery{Limit: limit, Bodiless: true})
		if len(got) != largest {
			b.failf("of %d messages, a query with a Limit of %d returned %d", largest+batch, limit, len(got))
		}
	}
}
