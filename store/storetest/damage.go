package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Damage is a way to damage a stored row behind the back of the store, as a
// failing disk, another program, or a person with a client does. The test of a
// store lists one for each kind of value that its rows have: a text that is not
// JSON, a time that is none, a number that is a text, or too large, a field that
// is missing, a document that ends early. What the database itself refuses needs
// no Damage.
//
// One of the functions is set. It damages one row, of which it is told the name,
// so that the store can no longer read all of it. It returns an error if it has
// not changed the row. Damage that turns a row into another valid one is none that
// a store can notice, and does not belong here.
type Damage struct {
	Name string // names the subtest

	// Record damages the record of a key. List, Get and Claim must notice it.
	Record func(ctx context.Context, k once.Key) error

	// Outgoing damages the message with this ID in the outbox.
	Outgoing func(ctx context.Context, id string) error

	// Shelved damages a message on the shelf of a consumer.
	Shelved func(ctx context.Context, consumer, id string) error

	// Leases damages what is kept of the leases of all lanes, in a store that keeps
	// it in one place.
	Leases func(ctx context.Context) error

	// Shelf damages what is kept of the whole shelf, in a store that keeps such a
	// thing beside the messages.
	Shelf func(ctx context.Context) error

	// Consumer damages the row of a consumer that is registered at one source, and
	// Registry what is kept of all consumers, in a store that keeps it in one place.
	// undo makes it what it was.
	Consumer func(ctx context.Context, name string) (undo func(context.Context) error, err error)
	Registry func(ctx context.Context) (undo func(context.Context) error, err error)

	// Position damages a position, and Partitions what is kept of the partitions of a
	// consumer, in a store that keeps such a thing beside the positions. undo makes it
	// what it was.
	Position   func(ctx context.Context, consumer, partition string) error
	Partitions func(ctx context.Context, consumer string) (undo func(context.Context) error, err error)
}

// damageRules are for stores whose harness lists damages.
func damageRules(damages []Damage, lists bool) (all []rule) {
	if !slices.ContainsFunc(damages, func(d Damage) bool { return d.Record != nil }) {
		return nil
	}
	all = append(all, rule{"damage/record",
		"The record of a damaged row is once.ErrCorrupt, also to claims, until it is forgotten, and changes no other.",
		damageRecord})
	if lists {
		all = append(all, rule{"damage/list",
			"List returns all records around a damaged one. That is in Damaged, also if it is asked for by its UUID.",
			damageList})
	}
	return all
}

// damageArchiveRules are for a [store.Archivable].
func damageArchiveRules(damages []Damage) []rule {
	if !slices.ContainsFunc(damages, func(d Damage) bool { return d.Record != nil }) {
		return nil
	}
	return []rule{{"damage/archive",
		"Forgettable returns the records around a damaged one that is due, together with once.ErrCorrupt.",
		damageArchive}}
}

func damageOutboxRules[Tx any](damages []Damage) (all []txRule[Tx]) {
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Leases != nil }) {
		all = append(all, txRule[Tx]{"damage/leases",
			"Damaged leases keep no relay out, and let none in at once: whoever had a lane may still be publishing.",
			damageLeases[Tx]})
	}
	if !slices.ContainsFunc(damages, func(d Damage) bool { return d.Outgoing != nil }) {
		return all
	}
	return append(all, []txRule[Tx]{
		{"damage/outbox",
			"A damaged message comes with Unopened set, in its place among the others, which come as they are.",
			damageOutbox[Tx]},
		{"damage/outbox-moves",
			"A damaged message can be made Stuck, listed so with its Reason, and removed. It keeps no other from its end.",
			damageOutboxMoves[Tx]},
		{"damage/outbox-ends",
			"A damaged message that a person made Stuck can be archived by the Hint with which it was read before.",
			damageOutboxEnds[Tx]},
		{"damage/outbox-delayed",
			"A damaged message that is Delayed keeps no other from being woken.",
			damageOutboxDelayed[Tx]},
	}...)
}

func damageShelfRules[Tx any](damages []Damage) (all []txRule[Tx]) {
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Shelf != nil }) {
		all = append(all, txRule[Tx]{"damage/shelf-index",
			"What is damaged beside the messages on the shelf keeps none from being listed, and none from being set aside after them.",
			damageShelfIndex[Tx]})
	}
	if !slices.ContainsFunc(damages, func(d Damage) bool { return d.Shelved != nil }) {
		return all
	}
	return append(all, []txRule[Tx]{
		{"damage/shelf",
			"A damaged message on the shelf comes with Unopened set, and all others come as they are, of its consumer and of all.",
			damageShelf[Tx]},
		{"damage/shelf-change",
			"A damaged message on the shelf can be parked with a Reason, discarded, and deleted.",
			damageShelfChange[Tx]},
	}...)
}

// eachDamage calls check with an own name for each damage of a kind.
func eachDamage[F any](b *bench, of func(Damage) F, isSet func(F) bool, check func(name string, damage F)) {
	for i, d := range b.damages {
		if f := of(d); isSet(f) {
			b.doing = fmt.Sprintf("damage %q: ", d.Name)
			check(fmt.Sprintf("%d ", i), f)
			b.doing = ""
		}
	}
}

func (b *bench) eachRecordDamage(check func(name string, damage func(context.Context, once.Key) error)) {
	eachDamage(b, func(d Damage) func(context.Context, once.Key) error { return d.Record },
		func(f func(context.Context, once.Key) error) bool { return f != nil }, check)
}

func (b *bench) eachOutgoingDamage(check func(name string, damage func(context.Context, string) error)) {
	eachDamage(b, func(d Damage) func(context.Context, string) error { return d.Outgoing },
		func(f func(context.Context, string) error) bool { return f != nil }, check)
}

func (b *bench) eachShelvedDamage(check func(name string, damage func(context.Context, string, string) error)) {
	eachDamage(b, func(d Damage) func(context.Context, string, string) error { return d.Shelved },
		func(f func(context.Context, string, string) error) bool { return f != nil }, check)
}

// wantCorrupt fails unless err is once.ErrCorrupt.
func (b *bench) wantCorrupt(doing string, err error) {
	b.wantErr(doing, err, once.ErrCorrupt)
}

func damageRecord(b *bench) {
	b.eachRecordDamage(func(name string, damage func(context.Context, once.Key) error) {
		bad, good := b.key(name+"bad"), b.key(name+"good")
		b.settle(done(b.own(bad, "me", long)))
		b.settle(done(b.own(good, "me", long)))
		before := b.get(good)
		b.must("the damage", damage(b, bad))
		_, err := b.store.Get(b, bad)
		b.wantCorrupt("Get", err)
		r := b.request(bad, "other", long)
		r.Wait = slowest
		_, err = b.store.Claim(b, r)
		b.wantCorrupt("Claim", err)
		_, err = b.store.Get(b, bad)
		b.wantCorrupt("Get after the Claim", err)
		b.unchanged("another record was damaged,", before, b.get(good))
		if many, ok := once.As[store.ManyGetter](b.store); ok {
			_, err := many.GetMany(b, []once.Key{good, bad})
			b.wantCorrupt("GetMany", err)
		}
	})
}

// damageList damages each of several records in turn, because only the store
// knows their order.
func damageList(b *bench) {
	places := 3 // of the damaged one among the others: one kind of damage shows them all
	b.eachRecordDamage(func(name string, damage func(context.Context, once.Key) error) {
		for nth := range places {
			op := fmt.Sprintf("%s/%s%d", b.key("").Operation, name, nth)
			var ids []string
			var bad once.Key
			for i := range 4 {
				k := b.key(name + fmt.Sprint(i))
				k.Operation = op
				fence := b.own(k, "me", long)
				b.settle(ending(fence, once.Parked))
				if i == nth {
					bad = k
				} else {
					ids = append(ids, k.ID)
				}
			}
			b.must("the damage", damage(b, bad))
			for _, q := range []once.RecordQuery{
				{Operation: op, Status: []once.Status{once.Parked}},
				{Operation: op, Status: []once.Status{once.Parked}, Limit: 1},
				{Operation: op, Limit: 2},
			} {
				b.wantAround(ids, q)
			}
			found, damaged := b.listDamaged(once.RecordQuery{UUID: bad.UUID()})
			if len(found) > 0 || len(damaged) != 1 {
				b.failf("List of the UUID of a damaged record returned %d records, and %d that are damaged", len(found), len(damaged))
			}
			if _, damaged = b.listDamaged(once.RecordQuery{Limit: 1000}); len(damaged) == 0 && !b.listsOpen {
				b.failf("List of everything has no record in Damaged")
			}
		}
		places = 1
	})
}

// wantAround checks that all pages of a query have exactly these records.
func (b *bench) wantAround(ids []string, q once.RecordQuery) {
	found, damaged := b.listDamaged(q)
	var got []string
	for _, rec := range found {
		got = append(got, rec.Key.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		b.failf("around a damaged record, List of %+v returned %q, want %q", q, got, ids)
	}
	for _, err := range damaged {
		b.wantCorrupt("Damaged of a page", err)
	}
}

// listDamaged is list together with what could not be read.
func (b *bench) listDamaged(q once.RecordQuery) (recs []once.Record, damaged []error) {
	if b.listsOpen && len(q.Status) == 0 && q.UUID == [16]byte{} {
		q.Status = open
	}
	seen := make(map[once.Key]bool)
	for {
		page := b.page(q)
		recs, damaged = append(recs, page.Records...), append(damaged, page.Damaged...)
		if page.Next == (once.Key{}) {
			return recs, damaged
		}
		b.goesOn(seen, page.Next)
		q.After = page.Next
	}
}

func damageArchive(b *bench) {
	b.eachRecordDamage(func(name string, damage func(context.Context, once.Key) error) {
		var ids []string
		for i := range 3 {
			id := name + fmt.Sprint(i)
			ids = append(ids, id)
			b.keep(id, func(set *once.Settlement) { set.KeepOutcome, set.KeepKey = short, long })
		}
		b.must("the damage", damage(b, b.key(ids[1])))
		b.until("Forgettable returns the others", func() bool {
			due, _, err := b.archivable().Forgettable(b, 1000)
			if err != nil && !errors.Is(err, once.ErrCorrupt) {
				b.must("Forgettable", err)
			}
			return b.isAmong(due, ids[0]) && b.isAmong(due, ids[2]) && !b.isAmong(due, ids[1])
		})
		due, _, _ := b.archivable().Forgettable(b, 1000)
		_, err := b.archivable().ForgetRecords(b, due)
		b.must("ForgetRecords", err)
	})
}

func (b *bench) isAmong(recs []once.Record, id string) bool {
	return slices.ContainsFunc(recs, func(rec once.Record) bool { return rec.Key == b.key(id) })
}

// damagedOutgoing puts three messages, of which the second is damaged. They are in
// one lane, and have two ordering keys.
func (b *txBench[Tx]) damagedOutgoing(name string, damage func(context.Context, string) error) (lane int, ids []string) {
	const of = 3
	for i, key := range []string{"k", "k", "other"} {
		m := b.outIn(of, b.run+" "+name+fmt.Sprint(i), key)
		m.Message.Header, m.Message.Time = map[string]string{"a": "b"}, time.Unix(1e9, 0).UTC()
		m.Message.Body = []byte("body")
		b.put(m)
		ids = append(ids, m.Message.ID)
	}
	b.must("the damage", damage(b, ids[1]))
	return of, ids
}

// ofRelay returns what a relay reads of a lane: the messages of this case, and
// those that are damaged, which may have lost their topic.
func (b *txBench[Tx]) ofRelay(state store.OutgoingState, lane int) []store.Outgoing {
	ms, err := b.outbox(1).Outgoing(b, store.OutgoingQuery{State: state, Lanes: []int{lane}, Limit: 1000})
	b.must("Outgoing", err)
	return slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Message.Topic != b.topic() && m.Unopened == nil })
}

func (b *txBench[Tx]) wantThree(doing string, ms []store.Outgoing, ids []string) {
	if len(ms) != 3 || ms[0].Message.ID != ids[0] || ms[2].Message.ID != ids[2] || ms[0].Unopened != nil || ms[2].Unopened != nil {
		b.failf("%s returned %q, want %q, the second one damaged", doing, outgoingIDs(ms), ids)
	}
	if ms[1].Unopened == nil {
		b.failf("%s returned a damaged message with Unopened nil: %s", doing, showOutgoing(ms[1]))
	}
	b.wantCorrupt("Unopened", ms[1].Unopened)
	for _, i := range []int{0, 2} {
		if m := ms[i].Message; string(m.Body) != "body" || m.Header["a"] != "b" || m.Time.IsZero() {
			b.failf("%s returned a message beside a damaged one as %s", doing, showOutgoing(ms[i]))
		}
	}
}

func damageOutbox[Tx any](b *txBench[Tx]) {
	b.eachOutgoingDamage(func(name string, damage func(context.Context, string) error) {
		lane, ids := b.damagedOutgoing(name, damage)
		b.wantThree("Outgoing of a lane", b.ofRelay(store.Pending, lane), ids)
		for what, q := range map[string]store.OutgoingQuery{
			"of a topic": {Topic: b.topic()}, "of IDs": {IDs: ids}, "of a topic, without bodies,": {Topic: b.topic(), Bodiless: true},
			"with MaxBytes": {Lanes: []int{lane}, MaxBytes: 1 << 20, Limit: 1000},
		} {
			q.State = store.Pending
			ms, err := b.outbox(1).Outgoing(b, q)
			b.must("Outgoing "+what, err)
			got := outgoingIDs(ms)
			if !slices.Contains(got, ids[0]) || !slices.Contains(got, ids[2]) {
				b.failf("Outgoing %s returned %q, want at least %q and %q", what, got, ids[0], ids[2])
			}
		}
		heads, err := b.outbox(1).Outgoing(b, store.OutgoingQuery{State: store.Pending, Heads: true, Limit: 1000, Bodiless: true})
		b.must("Outgoing with Heads", err)
		if !slices.Contains(outgoingIDs(heads), ids[2]) {
			b.failf("Outgoing with Heads returned %q, want %q among them", outgoingIDs(heads), ids[2])
		}
		_, err = b.outbox(1).OutboxDepth(b, 1000)
		b.must("OutboxDepth", err)
		b.changes(3, "RemoveOutgoing", b.removed(people, b.ofRelay(store.Pending, lane)...))
	})
}

func damageOutboxMoves[Tx any](b *txBench[Tx]) {
	b.eachOutgoingDamage(func(name string, damage func(context.Context, string) error) {
		lane, ids := b.damagedOutgoing(name, damage)
		ms := b.ofRelay(store.Pending, lane)
		b.wantThree("Outgoing of a lane", ms, ids)
		bad := ms[1]
		bad.Reason, bad.Attempts = "damaged, says a test", bad.Attempts+1
		b.changes(1, "MoveOutgoing of a damaged message", b.move1(people, store.Stuck, bad))
		b.changes(2, "Sent of the others", b.sent(people, store.Delete, ms[0], ms[2]))
		stuck := b.ofRelay(store.Stuck, lane) // the move may have repaired it, because it writes some fields anew
		if len(stuck) != 1 || stuck[0].Reason != bad.Reason {
			b.failf("after a damaged message was made Stuck, Outgoing returned %d of them: %q", len(stuck), outgoingIDs(stuck))
		}
		b.changes(1, "RemoveOutgoing of a damaged message", b.removed(people, stuck[0]))
		if left := b.ofRelay(store.Stuck, lane); len(left) > 0 {
			b.failf("after RemoveOutgoing the outbox has %q", outgoingIDs(left))
		}
	})
}

// damageOutboxEnds does what a person does who discards a message that waits.
func damageOutboxEnds[Tx any](b *txBench[Tx]) {
	b.eachOutgoingDamage(func(name string, damage func(context.Context, string) error) {
		lane, ids := b.damagedOutgoing(name, damage)
		ms := b.ofRelay(store.Pending, lane)
		b.wantThree("Outgoing of a lane", ms, ids)
		bad := ms[1]
		bad.Reason = "discarded, says a test"
		b.changes(1, "MoveOutgoing of a damaged message", b.move1(people, store.Stuck, bad))
		bad.State = store.Stuck
		b.changes(1, "Sent of a damaged message that was made Stuck", b.sent(people, store.Archive, bad))
		if left := b.ofRelay(store.Stuck, lane); len(left) > 0 {
			b.failf("after Sent the outbox has %q", outgoingIDs(left))
		}
		b.changes(2, "Sent of the others", b.sent(people, store.Delete, ms[0], ms[2]))
	})
}

func damageOutboxDelayed[Tx any](b *txBench[Tx]) {
	b.eachOutgoingDamage(func(name string, damage func(context.Context, string) error) {
		ids := []string{b.run + " " + name + "0", b.run + " " + name + "1", b.run + " " + name + "2"}
		for _, id := range ids {
			b.put(delayed(b.out(id, id), short))
		}
		b.must("the damage", damage(b, ids[1]))
		b.until("the others are woken", func() bool {
			_, _, err := b.outbox(1).WakeDelayed(b, people, store.Pending, 1000)
			b.must("WakeDelayed", err)
			got := outgoingIDs(b.outgoing(store.OutgoingQuery{State: store.Pending}))
			return slices.Contains(got, ids[0]) && slices.Contains(got, ids[2])
		})
		for _, state := range []store.OutgoingState{store.Pending, store.Delayed} {
			ms, err := b.outbox(1).Outgoing(b, store.OutgoingQuery{State: state, Limit: 1000})
			b.must("Outgoing", err)
			_, err = b.outbox(1).RemoveOutgoing(b, people, slices.DeleteFunc(ms, func(m store.Outgoing) bool {
				return m.Message.Topic != b.topic() && m.Unopened == nil
			}))
			b.must("RemoveOutgoing", err)
		}
	})
}

func damageLeases[Tx any](b *txBench[Tx]) {
	const lane = 5
	eachDamage(b.bench, func(d Damage) func(context.Context) error { return d.Leases },
		func(f func(context.Context) error) bool { return f != nil }, func(_ string, damage func(context.Context) error) {
			one, two := [16]byte{1}, [16]byte{2}
			lease := func(relay [16]byte) store.LaneLease {
				leases, err := b.outbox(1).LeaseLanes(b, relay, time.Hour, []int{lane})
				b.must("LeaseLanes beside damaged leases", err)
				return leases.Lanes[lane]
			}
			b.must("ReleaseLanes", b.outbox(1).ReleaseLanes(b, two, nil))
			if is := lease(one); is.Relay != one && is.Left <= 0 {
				b.failf("LeaseLanes of a free lane returned %x", is.Relay)
			}
			b.must("the damage", damage(b))
			for _, relay := range [][16]byte{two, one, two} {
				if is := lease(relay); is.Relay == relay || is.Left <= 0 {
					b.failf("after leases were damaged, a relay has the lane at once: %x for %v", is.Relay, is.Left)
				}
			}
			n, err := b.outbox(1).RemoveOutgoing(b, one, nil)
			if b.must("RemoveOutgoing beside damaged leases", err); n != 0 {
				b.failf("RemoveOutgoing of no message removed %d", n)
			}
		})
}

func damageShelfIndex[Tx any](b *txBench[Tx]) {
	eachDamage(b.bench, func(d Damage) func(context.Context) error { return d.Shelf },
		func(f func(context.Context) error) bool { return f != nil }, func(name string, damage func(context.Context) error) {
			consumer, late := b.consumer(name), b.consumer(name+"late")
			if registry, ok := once.As[store.Registry](b.store); ok {
				_, err := registry.Register(b, store.Consumer{Name: consumer, Source: "a source"})
				b.must("Register", err)
			}
			b.shelve(aside(consumer, "1", "k"))
			b.must("the damage", damage(b))
			b.wantShelved("a consumer, beside a damaged shelf", store.ShelfQuery{Consumer: consumer, Ready: true}, "1")
			all, err := b.shelf(1).Shelved(b, store.ShelfQuery{Limit: 1000})
			b.must("Shelved of all consumers", err)
			if !slices.ContainsFunc(all, func(m store.Shelved) bool { return m.Consumer == consumer }) ||
				!slices.ContainsFunc(all, func(m store.Shelved) bool { return m.Unopened != nil }) {
				b.failf("beside a damaged shelf, Shelved returned %d messages of all consumers, without one of those, or without what is damaged", len(all))
			}
			b.shelve(aside(consumer, "2", "k"), aside(late, "3", ""))
			b.wantShelved("a consumer, after a damaged shelf", store.ShelfQuery{Consumer: consumer}, "1", "2")
			all, err = b.shelf(1).Shelved(b, store.ShelfQuery{Limit: 1000})
			b.must("Shelved of all consumers", err)
			all = slices.DeleteFunc(all, func(m store.Shelved) bool { return m.Consumer != consumer && m.Consumer != late })
			if len(all) != 3 || all[0].Message.ID != "1" || all[1].Seq <= all[0].Seq {
				b.failf("after a damaged shelf, Shelved returned %d messages of these consumers, want 3", len(all))
			}
		})
}

// damagedShelved sets three messages of an own consumer aside, of which the
// second is damaged.
func (b *txBench[Tx]) damagedShelved(name string, damage func(context.Context, string, string) error) (consumer string, ids []string) {
	consumer, ids = b.consumer(name), []string{"0", "1", "2"}
	for _, id := range ids {
		m := aside(consumer, id, "key "+id)
		m.Message.Header, m.Message.Time, m.Message.Body = map[string]string{"a": "b"}, time.Unix(1e9, 0).UTC(), []byte("body")
		b.shelve(m)
	}
	b.must("the damage", damage(b, consumer, ids[1]))
	return consumer, ids
}

// damagedOf returns what a query returns besides messages of other cases, and
// which of it is damaged. A damaged message may have lost its consumer.
func (b *txBench[Tx]) damagedOf(consumer string, q store.ShelfQuery) (good []string, bad []store.Shelved) {
	for _, m := range b.shelved(q) {
		switch {
		case m.Unopened != nil:
			b.wantCorrupt("Unopened", m.Unopened)
			bad = append(bad, m)
		case m.Consumer == consumer:
			good = append(good, m.Message.ID)
			if !q.Bodiless && (string(m.Message.Body) != "body" || m.Message.Header["a"] != "b" || m.Message.Time.IsZero()) {
				b.failf("a message beside a damaged one came back as %s", showShelved(m))
			}
		}
	}
	return good, bad
}

func damageShelf[Tx any](b *txBench[Tx]) {
	b.eachShelvedDamage(func(name string, damage func(context.Context, string, string) error) {
		consumer, ids := b.damagedShelved(name, damage)
		for what, q := range map[string]store.ShelfQuery{
			"of a consumer":             {Consumer: consumer},
			"of what is ready":          {Consumer: consumer, Ready: true, BehindParked: true},
			"of all consumers":          {Limit: 1000},
			"of all, in a state":        {States: []store.ShelfState{store.Waiting}, Limit: 1000},
			"of all, without bodies":    {Limit: 1000, Bodiless: true},
			"of a consumer in one page": {Consumer: consumer, Limit: 3},
		} {
			good, bad := b.damagedOf(consumer, q)
			if q.Bodiless { // and the damage may be in what is omitted
				good = slices.DeleteFunc(good, func(id string) bool { return id == ids[1] })
			}
			if !slices.Equal(good, []string{ids[0], ids[2]}) {
				b.failf("beside a damaged message, Shelved %s returned %q", what, good)
			}
			if len(bad) == 0 && !q.Bodiless && !q.Ready {
				b.failf("Shelved %s returned no message with Unopened set", what)
			}
		}
		others := b.consumer(name + "other")
		b.shelve(aside(others, "1", "k"))
		b.wantShelved("another consumer", store.ShelfQuery{Consumer: others, Ready: true}, "1")
	})
}

func damageShelfChange[Tx any](b *txBench[Tx]) {
	b.eachShelvedDamage(func(name string, damage func(context.Context, string, string) error) {
		consumer, ids := b.damagedShelved(name, damage)
		m := b.damagedIn(store.Waiting, consumer, ids)
		if m.Unopened == nil {
			b.failf("Shelved returned a damaged message with Unopened nil: %s", showShelved(m))
		}
		m.State, m.Reason = store.Parked, "damaged, says a test"
		b.must("Change of a damaged message", b.shelf(2).Change(b, m))
		if m = b.damagedIn(store.Parked, consumer, ids); m.Reason != "damaged, says a test" {
			b.failf("a damaged message was parked, and its reason is %q", m.Reason)
		}
		good, bad := b.damagedOf(consumer, store.ShelfQuery{Consumer: consumer, Ready: true})
		if len(bad) > 0 || !slices.Equal(good, []string{ids[0], ids[2]}) {
			b.failf("after a damaged message was parked, %q are ready, and %d that are damaged", good, len(bad))
		}
		m.State, m.History = store.Discarded, "by a test"
		b.must("Change of a damaged message", b.shelf(2).Change(b, m))
		m = b.damagedIn(store.Discarded, consumer, ids)
		m.State, m.History = store.Handled, ""
		b.must("Change of a damaged message", b.shelf(2).Change(b, m))
		if left := b.shelved(store.ShelfQuery{Consumer: consumer}); len(left) != 2 {
			b.failf("a damaged message was deleted, and %d of 3 are still there", len(left))
		}
	})
}

// damagedIn returns the message of damagedShelved that was damaged. A change may
// have repaired it, because it writes some fields anew.
func (b *txBench[Tx]) damagedIn(state store.ShelfState, consumer string, ids []string) store.Shelved {
	found := b.shelved(store.ShelfQuery{Consumer: consumer, States: []store.ShelfState{state}})
	found = slices.DeleteFunc(found, func(m store.Shelved) bool {
		return m.Unopened == nil && (m.Message.ID == ids[0] || m.Message.ID == ids[2])
	})
	if len(found) != 1 {
		b.failf("%d damaged messages are %v, want one", len(found), state)
	}
	return found[0]
}
