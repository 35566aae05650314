package storetest

import (
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
)

func shelfQueryRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"shelf/selects",
			"Each field of a ShelfQuery selects exactly, and several fields select what all of them do.",
			shelfSelects[Tx]},
		{"shelf/pages",
			"Pages that continue after the last Seq of the page before are complete and have no repeats.",
			shelfPages[Tx]},
		{"shelf/due",
			"A message is ready when it is due, and its Due counts down to that.",
			shelfDue[Tx]},
		{"shelf/ready",
			"A message is not ready while an earlier one of its consumer and ordering key is Waiting or, if asked, Parked.",
			shelfReady[Tx]},
	}
}

func shelfSelects[Tx any](b *txBench[Tx]) {
	c, other := b.consumer("a"), b.consumer("b")
	handled, discarded, topic := aside(c, "3", "k"), aside(c, "4", ""), aside(c, "5", "K")
	handled.State, handled.History, discarded.State, topic.Message.Topic = store.Handled, "kept", store.Discarded, "Topic"
	b.shelve(aside(c, "1", "k"), parked(aside(c, "2", "k ")), handled, discarded, topic, aside(other, "1", "k"),
		aside(c+" ", "1", "k"))
	seq := b.shelvedAs(c, "2").Seq
	of := func(states ...store.ShelfState) []store.ShelfState { return states }
	for _, want := range []struct {
		q   store.ShelfQuery
		ids []string
	}{
		{store.ShelfQuery{}, []string{"1", "2", "3", "4", "5"}},
		{store.ShelfQuery{States: of(store.Parked)}, []string{"2"}},
		{store.ShelfQuery{States: of(store.Discarded, store.Handled)}, []string{"3", "4"}},
		{store.ShelfQuery{States: of(store.Waiting, store.Waiting)}, []string{"1", "5"}},
		{store.ShelfQuery{IDs: []string{"5", "none", "2"}}, []string{"2", "5"}},
		{store.ShelfQuery{IDs: []string{"2 "}}, nil},
		{store.ShelfQuery{OrderingKey: "k"}, []string{"1", "3"}},
		{store.ShelfQuery{OrderingKey: "k "}, []string{"2"}},
		{store.ShelfQuery{Topic: "topic"}, []string{"1", "2", "3", "4"}},
		{store.ShelfQuery{Topic: "Topic"}, []string{"5"}},
		{store.ShelfQuery{Topic: "topic "}, nil},
		{store.ShelfQuery{After: seq}, []string{"3", "4", "5"}},
		{store.ShelfQuery{After: seq, States: of(store.Waiting), Topic: "Topic", OrderingKey: "K", IDs: []string{"5"}},
			[]string{"5"}},
		{store.ShelfQuery{Ready: true}, []string{"1", "5"}},
		{store.ShelfQuery{Ready: true, States: of(store.Parked)}, nil},
		{store.ShelfQuery{Ready: true, OrderingKey: "K"}, []string{"5"}},
	} {
		want.q.Consumer = c
		b.wantShelved(fmt.Sprintf("a query for %+v", want.q), want.q, want.ids...)
	}
	b.wantShelved("a query for another consumer", store.ShelfQuery{Consumer: other}, "1")
	all := make(map[string]bool)
	for _, m := range b.shelved(store.ShelfQuery{After: seq - 1, Limit: 1000}) {
		all[m.Consumer] = true
	}
	if !all[c] || !all[other] {
		b.failf("a query for all consumers returned %v", all)
	}
}

func shelfPages[Tx any](b *txBench[Tx]) {
	const n = 107
	c := b.consumer("a")
	var ms []store.Shelved
	for i := range n {
		ms = append(ms, aside(c, fmt.Sprint(i), fmt.Sprint(i%5)))
	}
	b.shelve(ms...)
	for _, size := range []int{20, 0, 1000} {
		seen, after := 0, int64(0)
		for {
			page := b.shelved(store.ShelfQuery{Consumer: c, After: after, Limit: size})
			b.wantPage(len(page), size, n-seen)
			if len(page) == 0 {
				break
			}
			for _, m := range page {
				if m.Message.ID != fmt.Sprint(seen) || m.Seq <= after {
					b.failf("in pages of %d, the message %q with the Seq %d came at place %d after %d",
						size, m.Message.ID, m.Seq, seen, after)
				}
				seen, after = seen+1, m.Seq
			}
			if size == 20 && seen == 40 { // records may change while they are paged through
				m := page[0]
				m.State = store.Parked
				b.must("Change", b.shelf(0).Change(b, m))
			}
		}
	}
}

func shelfDue[Tx any](b *txBench[Tx]) {
	const soon = 100 * short
	c := b.consumer("a")
	now, later, late, past := aside(c, "now", ""), aside(c, "soon", ""), aside(c, "late", ""), aside(c, "past", "")
	later.Due, late.Due, past.Due = soon, long, -long
	b.shelve(late, later, now, past)
	ready := store.ShelfQuery{Consumer: c, Ready: true}
	if m := b.shelvedAs(c, "late"); m.Due <= 0 || m.Due > long {
		b.failf("a message that is due in %v has a Due of %v", long, m.Due)
	}
	for _, m := range b.shelved(ready) {
		if m.Due > 0 || m.Message.ID == "late" {
			b.failf("%q is ready, and due in %v", m.Message.ID, m.Due)
		}
	}
	b.until("a message that is due soon is ready", func() bool { return len(b.shelved(ready)) == 3 })
	b.wantShelved("when it is due", ready, "soon", "now", "past")
	m := b.shelvedAs(c, "now")
	m.Due = long
	b.must("Change", b.shelf(0).Change(b, m))
	m = b.shelvedAs(c, "late")
	m.Due = 0
	b.must("Change", b.shelf(0).Change(b, m))
	b.wantShelved("when Due was changed", ready, "late", "soon", "past")
	if m := b.shelvedAs(c, "now"); m.Due < long-10*b.patience || m.Due > long {
		b.failf("a message that was changed to be due in %v has a Due of %v", long, m.Due)
	}
	b.until("Due counts down", func() bool { return b.shelvedAs(c, "soon").Due < -time.Millisecond })
}

func shelfReady[Tx any](b *txBench[Tx]) {
	c, other := b.consumer("a"), b.consumer("b")
	late := aside(c, "waits", "k")
	late.Due = long
	handled, discarded := aside(c, "done 1", "done"), aside(c, "done 2", "done")
	handled.State, handled.History, discarded.State = store.Handled, "kept", store.Discarded
	b.shelve(late, parked(aside(c, "is parked", "p")), handled, discarded)
	b.shelve(aside(c, "behind waiting", "k"), aside(c, "behind parked", "p"), aside(c, "behind done", "done"),
		aside(c, "next behind done", "done"), aside(c, "free", "f"), parked(aside(c, "none", "")), aside(c, "no key", ""),
		aside(c, "no key either", ""), aside(c, "K", "K"), aside(other, "k", "k"), aside(other, "p", "p"))
	ready := func(behindParked bool) store.ShelfQuery {
		return store.ShelfQuery{Consumer: c, Ready: true, BehindParked: behindParked}
	}
	free := []string{"behind done", "free", "no key", "no key either", "K"}
	b.wantShelved("ready, behind parked: true", ready(true), free...)
	b.wantShelved("ready, behind parked: false", ready(false), append([]string{"behind parked"}, free...)...)
	others := store.ShelfQuery{Consumer: other, Ready: true, BehindParked: true}
	b.wantShelved("ready, of another consumer", others, "k", "p")
	first := b.shelvedAs(c, "waits")
	b.wantShelved("ready, behind one that is before the page", store.ShelfQuery{Consumer: c, Ready: true, After: first.Seq,
		OrderingKey: "k"})
	first.State, first.History = store.Discarded, "given up"
	b.must("Change", b.shelf(0).Change(b, first))
	b.wantShelved("ready, when what was before it is given up", ready(true),
		append([]string{"behind waiting"}, free...)...)
	second := ready(true)
	second.Limit = 2
	b.wantShelved("ready, two of them", second, "behind waiting", "behind done")
}

// wantPage checks that a page is full, or the last one.
func (b *bench) wantPage(got, limit, left int) {
	if limit == 0 {
		limit = 100
	}
	if got != min(limit, left) {
		b.failf("a page with a limit of %d has %d records, and %d were left", limit, got, left)
	}
}
