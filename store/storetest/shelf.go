package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// shelfRules are those of a [store.Shelf].
func shelfRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"shelf/exact",
			"A message comes back as it was set aside, with a Seq and Version 1.",
			shelfExact[Tx]},
		{"shelf/sealed",
			"A sealed message and its sealed reason can be opened when they are read.",
			shelfSealed[Tx]},
		{"shelf/large", "Bodies of several MiB are kept.", shelfLarge[Tx]},
		{"shelf/invalid",
			"A message with an invalid name, an unknown state or a text that is too long is once.ErrInvalid, and no message of its call is set aside.",
			shelfInvalid[Tx]},
		{"shelf/again",
			"Shelve skips a message whose ID its consumer already has on the shelf.",
			shelfAgain[Tx]},
		{"shelf/order",
			"Seq is the order in which messages were set aside, also within one call.",
			shelfOrder[Tx]},
		{"shelf/race",
			"Of several messages of one ID that are set aside at once, one is on the shelf. None of the others is lost, and each has its own Seq.",
			shelfRace[Tx]},
		{"shelf/change",
			"Change writes State, Due, Attempts, Reason and History, raises Version, and changes nothing else.",
			shelfChange[Tx]},
		{"shelf/stale-change",
			"A Change with an old Version is ErrLeaseLost and changes nothing.",
			shelfStaleChange[Tx]},
		{"shelf/invalid-change",
			"A Change to an unknown state, or with a text that is too long, is once.ErrInvalid and changes nothing.",
			shelfInvalidChange[Tx]},
		{"shelf/change-race",
			"Of several changes of one Version at once, exactly one is applied.",
			shelfChangeRace[Tx]},
		{"shelf/replay",
			"A Parked message that a person has changed to Waiting is ready in the place that it had, and one that is Discarded is out of the way.",
			shelfReplay[Tx]},
		{"shelf/handled",
			"A change to Handled with an empty History deletes the message. Its ID can be used again, and its Seq cannot.",
			shelfHandled[Tx]},
		{"shelf/change-many",
			"A ShelfBatch changes each message that has its Version, leaves the others alone, and says which is which.",
			shelfChangeMany[Tx]},
		{"shelf/queued",
			"NoQueued omits what waits in a queue, and nothing else. A queue is apart from what its consumer has on the shelf.",
			shelfQueued[Tx]},
		{"shelf/forget",
			"ForgetShelved deletes Handled and Discarded messages that are older than keep, at most limit.",
			shelfForget[Tx]},
	}
}

// txShelfRules are those of a [store.TxShelf], besides those of a [store.Shelf].
func txShelfRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"shelf/commits",
			"ShelveTx commits with its transaction, and is rolled back with it.",
			shelfCommits[Tx]},
		{"shelf/again-tx", "ShelveTx skips the messages that Shelve skips.", shelfAgainTx[Tx]},
		{"shelf/order-tx",
			"Seq is the order in which messages were set aside, also in several calls of ShelveTx in one transaction.",
			shelfOrderTx[Tx]},
		{"shelf/blocked",
			"BlockedTx returns the ordering keys for which this consumer has a Waiting message, or a Parked one if asked.",
			shelfBlocked[Tx]},
		{"shelf/blocked-fresh",
			"BlockedTx sees what other transactions have committed, and nothing that they have not.",
			shelfBlockedFresh[Tx]},
		{"shelf/blocked-handled",
			"A message that was deleted blocks nobody, and one with its ID that is set aside again does.",
			shelfBlockedHandled[Tx]},
		{"shelf/change-tx",
			"ChangeTx commits with its transaction, and is rolled back with it.",
			shelfChangeTx[Tx]},
		{"shelf/stale-change-tx",
			"A ChangeTx with an old Version is ErrLeaseLost and changes nothing.",
			shelfStaleChangeTx[Tx]},
	}
}

func shelfFlagRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"shelf/flag",
			"Position.Shelved reports whether the consumer has Waiting or Parked messages on the shelf.",
			shelfFlag[Tx]},
	}
}

func (b *txBench[Tx]) shelf(i int) store.Shelf {
	return capability[store.Shelf](b.bench, b.txSpread(i))
}

func (b *txBench[Tx]) txShelf(i int) store.TxShelf[Tx] {
	return capability[store.TxShelf[Tx]](b.bench, b.txSpread(i))
}

// aside returns a message to set aside.
func aside(consumer, id, orderingKey string) store.Shelved {
	return store.Shelved{Consumer: consumer, State: store.Waiting,
		Message: broker.Message{ID: id, Topic: "topic", OrderingKey: orderingKey}}
}

func parked(m store.Shelved) store.Shelved {
	m.State = store.Parked
	return m
}

func (b *txBench[Tx]) shelve(ms ...store.Shelved) { b.must("Shelve", b.shelf(0).Shelve(b, ms)) }

func (b *txBench[Tx]) shelved(q store.ShelfQuery) []store.Shelved {
	ms, err := b.shelf(1).Shelved(b, q)
	b.must("Shelved", err)
	return ms
}

// shelvedAs returns a message that must be on the shelf.
func (b *txBench[Tx]) shelvedAs(consumer, id string) store.Shelved {
	ms := b.shelved(store.ShelfQuery{Consumer: consumer, IDs: []string{id}})
	if len(ms) != 1 {
		b.failf("%d messages of %q on the shelf have the ID %q, want one", len(ms), consumer, id)
	}
	return ms[0]
}

func (b *txBench[Tx]) wantShelved(doing string, q store.ShelfQuery, want ...string) {
	var got []string
	for _, m := range b.shelved(q) {
		got = append(got, m.Message.ID)
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		b.failf("%s: the shelf has %q, want %q", doing, got, want)
	}
}

func (b *txBench[Tx]) wantSame(after string, got, want store.Shelved) {
	if d := shelvedDifference(got, want); d != "" {
		b.failf("after %s a message differs in %s:\ngot  %s\nwant %s", after, d, showShelved(got), showShelved(want))
	}
}

// shelvedDifference returns the name of the first field in which two readings
// differ, except for Due, which counts down.
func shelvedDifference(got, want store.Shelved) string {
	g, w := got.Message, want.Message
	switch {
	case got.Seq != want.Seq:
		return "Seq"
	case got.Version != want.Version:
		return "Version"
	case got.Consumer != want.Consumer:
		return "Consumer"
	case got.Key != want.Key:
		return "Key"
	case g.ID != w.ID:
		return "ID"
	case g.Topic != w.Topic:
		return "Topic"
	case g.OrderingKey != w.OrderingKey:
		return "OrderingKey"
	case !bytes.Equal(g.Body, w.Body):
		return "Body"
	case !maps.Equal(g.Header, w.Header):
		return "Header"
	case !g.Time.Truncate(time.Microsecond).Equal(w.Time.Truncate(time.Microsecond)):
		return "Time"
	case g.Attempt != 0:
		return "Attempt, which is not kept"
	case got.Origin != want.Origin:
		return "Origin"
	case got.State != want.State:
		return "State"
	case got.Attempts != want.Attempts:
		return "Attempts"
	case got.Reason != want.Reason:
		return "Reason"
	case got.History != want.History:
		return "History"
	case !got.Created.Equal(want.Created):
		return "Created"
	case !got.Updated.Equal(want.Updated):
		return "Updated"
	}
	return ""
}

func showShelved(m store.Shelved) string {
	m.Message.Body, m.History = m.Message.Body[:min(len(m.Message.Body), 40)], m.History[:min(len(m.History), 40)]
	return fmt.Sprintf("%.2000s", fmt.Sprintf("%+q", fmt.Sprintf("%+v", m)))
}

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func shelfExact[Tx any](b *txBench[Tx]) {
	text := strings.Repeat("é\n\t'\"\\ 🙂 ", (64<<10)/20)
	var want []store.Shelved
	for i, name := range b.hardNames() {
		m := aside(b.consumer("a"), name, name)
		m.Key, m.Message.Topic, m.Origin, m.State = name, name, name, store.ShelfState(i%4+1)
		m.Message.Attempt, m.Attempts, m.Reason, m.History = 9, i, name, text
		m.Seq, m.Version, m.Created, m.Updated = 12345, 77, time.Unix(1, 0), time.Unix(1, 0) // the store assigns these
		switch i % 3 {
		case 0:
			m.Message.Body = everyByte()
			m.Message.Header = map[string]string{"all": string(everyByte()), "empty": "", "é": "ü\u2028<&>",
				"once-type": "x", "\xff": "\x00", "": "no name"}
			m.Message.Time = time.Date(2026, 2, 3, 4, 5, 6, 123456789, time.FixedZone("", 3600))
		case 1:
			m.Message.Body, m.Message.Header = []byte{}, map[string]string{}
			m.Message.Time = time.Date(1815, 12, 10, 0, 0, 0, 0, time.UTC)
		}
		want = append(want, m)
	}
	start := time.Now()
	b.shelve(want...)
	last := int64(0)
	for i, got := range b.shelved(store.ShelfQuery{Consumer: b.consumer("a")}) {
		w := want[i]
		w.Seq, w.Version, w.Created, w.Updated = got.Seq, 1, got.Created, got.Created
		b.wantSame("ShelveTx", got, w)
		if got.Seq <= last || got.Created.Before(start.Add(-long)) || got.Created.After(start.Add(long)) {
			b.failf("a message has the Seq %d after %d, and was created %v", got.Seq, last, got.Created)
		}
		last = got.Seq
	}
	for _, m := range b.shelved(store.ShelfQuery{Consumer: b.consumer("a"), Bodiless: true}) {
		if len(m.Message.Body)+len(m.Message.Header) > 0 || m.History != text {
			b.failf("a query for messages without bodies and headers returned %s", showShelved(m))
		}
	}
	if want[0].Message.Attempt != 9 || want[0].Seq != 12345 {
		b.failf("ShelveTx changed a message of its caller's")
	}
}

// shelfLarge also sets a large message aside several times at once.
func shelfLarge[Tx any](b *txBench[Tx]) {
	large, often := aside(b.consumer("a"), "large", ""), aside(b.consumer("a"), "large and often", "")
	large.Message.Body = bytes.Repeat([]byte("0123456789abcde\x00"), 3<<16)
	large.Message.Header = map[string]string{"large": strings.Repeat("x", 100<<10)}
	often.Message.Body = bytes.Repeat([]byte("0123456789abcdef"), 5<<14)
	b.shelve(large)
	b.together(2, func(i int) {
		b.persist("Shelve", func() error { return b.shelf(i).Shelve(b, []store.Shelved{aside(often.Consumer, "small", ""), often}) })
	})
	all := store.ShelfQuery{Consumer: large.Consumer, Bodiless: true}
	b.wantShelved("Shelve of large messages", all, "large", "small", "large and often")
	for _, want := range []store.Shelved{large, often} {
		got := b.shelvedAs(want.Consumer, want.Message.ID)
		if !bytes.Equal(got.Message.Body, want.Message.Body) || !maps.Equal(got.Message.Header, want.Message.Header) {
			b.failf("a body of %d bytes came back with %d", len(want.Message.Body), len(got.Message.Body))
		}
		got.State = store.Handled
		b.must("Change", b.shelf(0).Change(b, got))
	}
	b.wantShelved("a change of both to Handled", all, "small")
}

func shelfCommits[Tx any](b *txBench[Tx]) {
	m := aside(b.consumer("a"), "1", "k")
	both := func(tx Tx) {
		b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{m}))
		b.must("Effect", b.effect(tx, "row"))
	}
	b.inTx(false, both)
	b.wantShelved("a rollback", store.ShelfQuery{Consumer: m.Consumer})
	b.inTx(true, both)
	b.wantShelved("a commit", store.ShelfQuery{Consumer: m.Consumer}, "1")
	b.wantEffects("row", 1)
	b.inTx(true, func(tx Tx) { b.must("ShelveTx of nothing", b.txShelf(0).ShelveTx(b, tx, nil)) })
	b.must("Shelve of nothing", b.shelf(0).Shelve(b, nil))
}

func shelfAgain[Tx any](b *txBench[Tx]) {
	b.setAsideAgain(func(ms []store.Shelved) { b.must("Shelve, again", b.shelf(1).Shelve(b, ms)) })
	b.shelve(aside(b.consumer("b"), "state 1", "k"), aside(b.consumer("b"), "State 1", "k"))
	b.wantShelved("another consumer", store.ShelfQuery{Consumer: b.consumer("b")}, "state 1", "State 1")
}

func shelfAgainTx[Tx any](b *txBench[Tx]) {
	b.setAsideAgain(func(ms []store.Shelved) {
		b.inTx(true, func(tx Tx) {
			b.must("ShelveTx, again", b.txShelf(1).ShelveTx(b, tx, ms))
			b.must("Effect", b.effect(tx, "row"))
		})
	})
	b.wantEffects("row", 4)
}

// setAsideAgain sets messages aside that are there, in each state, among others.
func (b *txBench[Tx]) setAsideAgain(again func([]store.Shelved)) {
	c := b.consumer("a")
	for _, state := range []store.ShelfState{store.Waiting, store.Parked, store.Handled, store.Discarded} {
		id := fmt.Sprint("state ", state)
		m := aside(c, id, "k")
		m.State, m.History, m.Message.Body = state, "kept", []byte("first")
		b.shelve(m)
		before := b.shelvedAs(c, id)
		other := parked(aside(c, id, "other"))
		other.Message.Body, other.Reason = []byte("second"), "again"
		again([]store.Shelved{other, aside(c, id+" too", ""), other})
		b.wantSame("a message that was there was set aside", b.shelvedAs(c, id), before)
		b.shelvedAs(c, id+" too")
	}
}

func shelfOrder[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(aside(c, "9", ""), aside(c, "1", ""), aside(b.consumer("b"), "x", ""), aside(c, "5", ""))
	b.must("Shelve", b.shelf(1).Shelve(b, []store.Shelved{aside(c, "4", ""), aside(c, "9", ""), aside(c, "3", "")}))
	b.shelve(aside(c, "0", ""))
	b.must("Shelve of nothing", b.shelf(0).Shelve(b, nil))
	b.wantShelved("several Shelve", store.ShelfQuery{Consumer: c}, "9", "1", "5", "4", "3", "0")
}

func shelfOrderTx[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(aside(c, "9", ""), aside(c, "1", ""), aside(b.consumer("b"), "x", ""), aside(c, "5", ""))
	b.inTx(false, func(tx Tx) { b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{aside(c, "7", "")})) })
	b.inTx(true, func(tx Tx) {
		b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{aside(c, "4", ""), aside(c, "3", "")}))
		b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{aside(c, "0", "")}))
	})
	b.wantShelved("several ShelveTx", store.ShelfQuery{Consumer: c}, "9", "1", "5", "4", "3", "0")
}

// shelfInvalid also checks that the shelf takes what is just within the limits.
func shelfInvalid[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	long := strings.Repeat("x", 64<<10)
	for what, spoil := range map[string]func(*store.Shelved){
		"no consumer":          func(m *store.Shelved) { m.Consumer = "" },
		"a long consumer":      func(m *store.Shelved) { m.Consumer = strings.Repeat("c", 256) },
		"a consumer with NUL":  func(m *store.Shelved) { m.Consumer += "\x00" },
		"a long key":           func(m *store.Shelved) { m.Key = strings.Repeat("k", 256) },
		"a long ID":            func(m *store.Shelved) { m.Message.ID = strings.Repeat("i", 256) },
		"an ID not UTF-8":      func(m *store.Shelved) { m.Message.ID = "\xff" },
		"a long ordering key":  func(m *store.Shelved) { m.Message.OrderingKey = strings.Repeat("o", 256) },
		"a topic that is long": func(m *store.Shelved) { m.Message.Topic = strings.Repeat("t", 256) },
		"no state":             func(m *store.Shelved) { m.State = 0 },
		"an unknown state":     func(m *store.Shelved) { m.State = store.Discarded + 1 },
		"a long reason":        func(m *store.Shelved) { m.Reason = long + "x" },
		"a long history":       func(m *store.Shelved) { m.History = long + "x" },
	} {
		bad := aside(c, "bad", "k")
		spoil(&bad)
		b.wantErr("Shelve of a message with "+what, b.shelf(0).Shelve(b, []store.Shelved{aside(c, "good", "k"), bad}), once.ErrInvalid)
		b.wantShelved("Shelve of a message with "+what, store.ShelfQuery{Consumer: c})
	}
	most := aside(c, strings.Repeat("i", 255), strings.Repeat("o", 255))
	most.Key, most.Message.Topic, most.Reason, most.History = strings.Repeat("k", 255), strings.Repeat("t", 255), long, long
	b.shelve(most)
	if got := b.shelvedAs(c, most.Message.ID); got.Reason != long || got.History != long {
		b.failf("texts of %d bytes came back with %d and %d", len(long), len(got.Reason), len(got.History))
	}
}

func shelfRace[Tx any](b *txBench[Tx]) {
	const n = 16
	c := b.consumer("a")
	b.together(n, func(i int) {
		same, own := aside(c, "same", "k"), aside(c, fmt.Sprint("own ", i), "k")
		same.Reason = fmt.Sprint("racer ", i)
		b.persist("Shelve", func() error { return b.shelf(i).Shelve(b, []store.Shelved{own, same}) })
	})
	seqs, ids := make(map[int64]bool), make(map[string]bool)
	for _, m := range b.shelved(store.ShelfQuery{Consumer: c}) {
		if ids[m.Message.ID] || seqs[m.Seq] {
			b.failf("%q, with the Seq %d, or another message with one of these, is twice on the shelf", m.Message.ID, m.Seq)
		}
		ids[m.Message.ID], seqs[m.Seq] = true, true
	}
	if len(ids) != n+1 {
		b.failf("after %d calls that each set one message of its own aside and one of all, the shelf has %d", n, len(ids))
	}
}

func shelfFlag[Tx any](b *txBench[Tx]) {
	p, other := b.open(b.consumer("a"), "0"), b.open(b.consumer("b"), "0")
	want := func(after string, shelved bool) {
		if got := b.stored(p).Shelved; got != shelved {
			b.failf("%s, Positions returned Shelved %v", after, got)
		}
		if got := b.open(p.Consumer, "1").Shelved; got != shelved {
			b.failf("%s, OpenPosition returned Shelved %v", after, got)
		}
	}
	want("with nothing on the shelf", false)
	b.shelve(parked(aside(p.Consumer, "1", "")), aside(p.Consumer, "2", "k"))
	want("with a message that is waiting and one that is parked", true)
	for i, end := range []store.ShelfState{store.Discarded, store.Handled} {
		m := b.shelvedAs(p.Consumer, fmt.Sprint(2-i))
		m.State = end
		m.History = "kept"
		b.must("Change", b.shelf(0).Change(b, m))
		want("with messages of which some are handled or discarded", i == 0)
	}
	if b.stored(other).Shelved {
		b.failf("the messages of one consumer are on the shelf of another")
	}
}

// blocked calls BlockedTx in its own transaction.
func (b *txBench[Tx]) blocked(consumer string, parkedToo bool, keys ...string) (got []string) {
	b.inTx(true, func(tx Tx) {
		var err error
		got, err = b.txShelf(1).BlockedTx(b, tx, consumer, keys, parkedToo)
		b.must("BlockedTx", err)
	})
	return got
}

func (b *txBench[Tx]) wantBlocked(consumer string, parkedToo bool, keys []string, want ...string) {
	got := make(map[string]bool)
	for _, key := range b.blocked(consumer, parkedToo, keys...) {
		got[key] = true
	}
	ok := len(got) == len(want)
	for _, key := range want {
		ok = ok && got[key]
	}
	if !ok {
		b.failf("of %q, parked too: %v, BlockedTx returned %v, want %q", keys, parkedToo, got, want)
	}
}

func shelfBlocked[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	handled, discarded := aside(c, "3", "handled"), aside(c, "4", "discarded")
	handled.State, handled.History, discarded.State = store.Handled, "kept", store.Discarded
	b.shelve(aside(c, "1", "waiting"), parked(aside(c, "2", "parked")), handled, discarded, aside(c, "5", ""),
		aside(b.consumer("b"), "6", "other"), aside(c, "7", "both"), parked(aside(c, "8", "both")))
	keys := []string{"free", "parked", "handled", "waiting", "both", "discarded", "other", "Waiting", "waiting ", ""}
	b.wantBlocked(c, true, keys, "parked", "waiting", "both")
	b.wantBlocked(c, false, keys, "waiting", "both")
	b.wantBlocked(c, true, []string{"parked", "parked"}, "parked")
	b.wantBlocked(c, true, nil)
	b.wantBlocked(b.consumer("b"), true, keys, "other")
	many := []string{"waiting"}
	for i := range 1000 {
		many = append(many, fmt.Sprint("key ", i))
	}
	b.wantBlocked(c, true, many, "waiting")
	b.inTx(false, func(tx Tx) {
		b.must("ShelveTx", b.txShelf(0).ShelveTx(b, tx, []store.Shelved{aside(c, "9", "own")}))
		got, err := b.txShelf(0).BlockedTx(b, tx, c, []string{"own", "free"}, false)
		if b.must("BlockedTx", err); len(got) != 1 || got[0] != "own" {
			b.failf("BlockedTx of what the same transaction has put aside returned %q", got)
		}
	})
	b.wantBlocked(c, true, []string{"own"})
}

func shelfHandled[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	gone, again := b.deleteOneOfTwo(c)
	b.wantShelved("Shelve of both, again", store.ShelfQuery{Consumer: c}, "2", "1")
	if again.Seq <= gone.Seq || again.Version != 1 {
		b.failf("a message that is new on the shelf has the Seq %d and the Version %d, and one that is gone had %d",
			again.Seq, again.Version, gone.Seq)
	}
	gone.Version = 1
	b.wantErr("Change of one that had this ID before", b.shelf(0).Change(b, gone), once.ErrLeaseLost)
}

// deleteOneOfTwo sets two messages of an ordering key aside, and ends both, one
// without a trace. It sets both aside again, and returns the one that was deleted,
// and what is there in its place.
func (b *txBench[Tx]) deleteOneOfTwo(c string) (gone, again store.Shelved) {
	b.shelve(aside(c, "1", "k"), parked(aside(c, "2", "k")))
	gone, kept := b.shelvedAs(c, "1"), b.shelvedAs(c, "2")
	gone.State, kept.State, kept.History = store.Handled, store.Handled, "tried again by a person"
	b.must("Change", b.shelf(0).Change(b, gone))
	b.must("Change", b.shelf(0).Change(b, kept))
	b.wantShelved("a change to Handled", store.ShelfQuery{Consumer: c}, "2")
	b.wantErr("Change of a deleted message", b.shelf(0).Change(b, gone), once.ErrLeaseLost)
	b.shelve(aside(c, "1", "k"), aside(c, "2", "k"))
	return gone, b.shelvedAs(c, "1")
}

func shelfBlockedHandled[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	b.shelve(aside(c, "1", "k"))
	m := b.shelvedAs(c, "1")
	m.State = store.Handled
	b.must("Change", b.shelf(0).Change(b, m))
	b.wantBlocked(c, true, []string{"k"})
	b.shelve(aside(c, "1", "k"))
	b.wantBlocked(c, true, []string{"k"}, "k")
}
