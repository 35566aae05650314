package storetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// outboxRules returns the rules of an outbox, in groups. Their cases share its
// lanes, so they run one after another.
func outboxRules[Tx any](s once.TxStore[Tx], damages []Damage) (groups [][]txRule[Tx]) {
	groups = [][]txRule[Tx]{outboxPutRules[Tx](), outboxLeaseRules[Tx](), outboxFenceRules[Tx](), outboxChangeRules[Tx](),
		outboxDelayRules[Tx](), outboxQueryRules[Tx](), outboxDepthRules[Tx](), outboxFlightRules[Tx](),
		damageOutboxRules[Tx](damages)}
	if hasCapability[store.Bell](s) {
		groups = append(groups, outboxBellRules[Tx]())
	}
	if hasCapability[store.HandOver](s) {
		groups = append(groups, handOverRules[Tx]())
	}
	if hasCapability[store.Presence](s) {
		groups = append(groups, outboxPresenceRules[Tx]())
	}
	for _, group := range groups {
		for i, r := range group {
			group[i].check = func(b *txBench[Tx]) {
				b.freeLanes()
				defer b.tidy()
				r.check(b)
			}
		}
	}
	return groups
}

func (b *txBench[Tx]) outbox(i int) store.Outbox[Tx] {
	return capability[store.Outbox[Tx]](b.bench, b.txSpread(i))
}

// people is the zero relay, which needs no lease.
var people [16]byte

// relays are the names of the relays of all cases except races.
var relays = []string{"a", "b", "c", "d"}

// freeLanes releases all lanes. An earlier run may have been killed while it
// had some.
func (b *txBench[Tx]) freeLanes() {
	probe := b.token("probe")
	as, err := b.outbox(0).LeaseLanes(b, probe, long, nil)
	b.must("LeaseLanes of no lanes", err)
	for _, l := range as.Lanes {
		if l.Relay != people {
			b.must("ReleaseLanes", b.outbox(0).ReleaseLanes(b, l.Relay, nil))
		}
	}
	b.must("ReleaseLanes", b.outbox(0).ReleaseLanes(b, probe, nil))
}

// tidy removes the messages of this case, however many there are and however long
// that takes, as long as each call removes some: what stays would be in the next
// case. So a store that keeps refusing fails the case.
func (b *txBench[Tx]) tidy() {
	ctx := context.WithoutCancel(b)
	for _, name := range relays {
		_ = b.outbox(0).ReleaseLanes(ctx, b.token(name), nil) // which other cases report
	}
	for state := store.Pending; state <= store.Published; state++ {
		for b.removeSome(ctx, state) {
		}
	}
}

// removeSome removes up to a page of the messages of this case in a state, and
// reports whether it has removed any.
func (b *txBench[Tx]) removeSome(ctx context.Context, state store.OutgoingState) bool {
	removed := 0
	b.persist("remove the messages of the case", func() error {
		ctx, cancel := context.WithTimeout(ctx, b.patience)
		defer cancel()
		q := store.OutgoingQuery{State: state, Topic: b.topic(), Limit: 1000, Bodiless: true}
		ms, err := b.outbox(0).Outgoing(ctx, q)
		if err != nil || len(ms) == 0 {
			return err
		}
		removed, err = b.outbox(0).RemoveOutgoing(ctx, people, ms)
		if removed > 0 {
			return nil // the rest is read again
		}
		return err
	})
	return removed > 0
}

// topic returns a topic that no other case uses.
func (b *txBench[Tx]) topic() string { return b.run + " topic" }

// out returns a message to put. An empty ordering key stays empty.
func (b *txBench[Tx]) out(id, orderingKey string) store.Outgoing {
	if orderingKey != "" {
		orderingKey = b.run + " " + orderingKey
	}
	return store.Outgoing{Message: broker.Message{ID: id, Topic: b.topic(), OrderingKey: orderingKey}}
}

// outIn returns a message in a lane. Messages with the same name have the same
// ordering key.
func (b *txBench[Tx]) outIn(lane int, id, name string) store.Outgoing {
	for i := 0; ; i++ {
		if m := b.out(id, fmt.Sprint(name, " ", i)); store.Lane(&m.Message) == lane {
			return m
		}
	}
}

func delayed(m store.Outgoing, d time.Duration) store.Outgoing {
	m.Delay = d
	return m
}

// put puts messages, in several transactions if the store takes no more at once.
func (b *txBench[Tx]) put(ms ...store.Outgoing) {
	for some := range slices.Chunk(ms, cmp.Or(b.h.MaxMessages, max(len(ms), 1))) {
		b.inTx(true, func(tx Tx) { b.must("PutTx", b.outbox(0).PutTx(b, tx, some)) })
	}
}

// putAs puts a message and gives it a state.
func (b *txBench[Tx]) putAs(state store.OutgoingState, ms ...store.Outgoing) {
	b.put(ms...)
	for _, m := range ms {
		if m = b.outAs(store.Pending, m.Message.ID); state != store.Pending {
			m.Delay = long
			b.changes(1, "MoveOutgoing to "+state.String(), b.move1(people, state, m))
		}
	}
}

// changed is the number of rows that a call reports as changed.
type changed struct {
	n   int
	err error
}

func (b *txBench[Tx]) changes(want int, doing string, c changed) {
	b.must(doing, c.err)
	if c.n != want {
		b.failf("%s returned %d changed rows, want %d", doing, c.n, want)
	}
}

func (b *txBench[Tx]) sent(relay [16]byte, then store.Ending, ms ...store.Outgoing) changed {
	n, err := b.outbox(2).Sent(b, relay, ms, then)
	return changed{n, err}
}

func (b *txBench[Tx]) move1(relay [16]byte, to store.OutgoingState, ms ...store.Outgoing) changed {
	n, err := b.outbox(2).MoveOutgoing(b, relay, ms, to)
	return changed{n, err}
}

func (b *txBench[Tx]) removed(relay [16]byte, ms ...store.Outgoing) changed {
	n, err := b.outbox(2).RemoveOutgoing(b, relay, ms)
	return changed{n, err}
}

// outgoing returns the messages of this case that a query selects.
func (b *txBench[Tx]) outgoing(q store.OutgoingQuery) []store.Outgoing {
	if q.Topic == "" {
		q.Topic = b.topic()
	}
	ms, err := b.outbox(1).Outgoing(b, q)
	b.must("Outgoing", err)
	return ms
}

// chunk returns what a relay reads from these lanes.
func (b *txBench[Tx]) chunk(lanes ...int) []store.Outgoing {
	ms, err := b.outbox(1).Outgoing(b, store.OutgoingQuery{Lanes: lanes, Limit: 1000})
	b.must("Outgoing", err)
	return slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Message.Topic != b.topic() })
}

// outAs returns a message that must be in the outbox in a state.
func (b *txBench[Tx]) outAs(state store.OutgoingState, id string) store.Outgoing {
	ms := b.outgoing(store.OutgoingQuery{State: state, IDs: []string{id}})
	if len(ms) != 1 {
		b.failf("%d messages that are %v have the ID %q, want one", len(ms), state, id)
	}
	if ms[0].State != state {
		b.failf("a query for %v returned %s", state, showOutgoing(ms[0]))
	}
	return ms[0]
}

func outgoingIDs(ms []store.Outgoing) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.Message.ID)
	}
	return ids
}

func (b *txBench[Tx]) wantIDs(doing string, ms []store.Outgoing, want ...string) {
	if got := outgoingIDs(ms); !slices.Equal(got, want) {
		b.failf("%s: the outbox has %q, want %q", doing, got, want)
	}
}

// wantAnyOrder is like wantIDs for messages of several lanes, among which Seq
// promises no order.
func (b *txBench[Tx]) wantAnyOrder(doing string, ms []store.Outgoing, want ...string) {
	got := slices.Sorted(slices.Values(outgoingIDs(ms)))
	if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		b.failf("%s: the outbox has %q, want %q", doing, got, want)
	}
}

// wantOut checks that exactly these messages are in a state.
func (b *txBench[Tx]) wantOut(doing string, state store.OutgoingState, want ...string) {
	b.wantAnyOrder(fmt.Sprintf("%s, messages that are %v", doing, state), b.outgoing(store.OutgoingQuery{State: state}), want...)
}

func (b *txBench[Tx]) wantSameOut(after string, got, want store.Outgoing) {
	if d := outgoingDifference(got, want); d != "" {
		b.failf("after %s a message differs in %s:\ngot  %s\nwant %s", after, d, showOutgoing(got), showOutgoing(want))
	}
}

// outgoingDifference returns the name of the first field in which two readings
// differ, except for Delay, which counts down.
func outgoingDifference(got, want store.Outgoing) string {
	g, w := got.Message, want.Message
	for _, field := range []struct {
		name string
		same bool
	}{
		{"ID", g.ID == w.ID},
		{"Topic", g.Topic == w.Topic},
		{"OrderingKey", g.OrderingKey == w.OrderingKey},
		{"Body", bytes.Equal(g.Body, w.Body)},
		{"Header", maps.Equal(g.Header, w.Header)},
		{"Time", g.Time.Truncate(time.Microsecond).Equal(w.Time.Truncate(time.Microsecond))},
		{"Attempt, which is not kept", g.Attempt == 0},
		{"Lane", got.Lane == want.Lane},
		{"Seq", got.Seq == want.Seq},
		{"Cause", got.Cause == want.Cause},
		{"State", got.State == want.State},
		{"Attempts", got.Attempts == want.Attempts},
		{"Reason", got.Reason == want.Reason},
		{"Created", got.Created.Equal(want.Created)},
		{"Changed", got.Changed.Equal(want.Changed)},
	} {
		if !field.same {
			return field.name
		}
	}
	return ""
}

func showOutgoing(m store.Outgoing) string {
	m.Message.Body, m.Reason = m.Message.Body[:min(len(m.Message.Body), 40)], m.Reason[:min(len(m.Reason), 40)]
	return fmt.Sprintf("%.2000s", fmt.Sprintf("%+q", fmt.Sprintf("%+v", m)))
}
