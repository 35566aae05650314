package storetest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/store"
)

func outboxLeaseRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/leased",
			"LeaseLanes leases lanes that nobody has, extends those of the relay, and leaves those of other relays alone.",
			outboxLeased[Tx]},
		{"outbox/released",
			"ReleaseLanes ends the leases of a relay, and leaves those of other relays alone.",
			outboxReleased[Tx]},
		{"outbox/lapsed",
			"A lapsed lease remains until a relay takes the lane, or its own relay extends it.",
			outboxLapsed[Tx]},
		{"outbox/relays",
			"A relay is alive for ttl after each LeaseLanes, or until it releases all lanes.",
			outboxRelays[Tx]},
		{"outbox/lease-race",
			"When several relays lease a lane at once, one gets it, and all learn which.",
			outboxLeaseRace[Tx]},
	}
}

// lease calls LeaseLanes for a relay.
func (b *txBench[Tx]) lease(name string, ttl time.Duration, lanes ...int) store.Leases {
	as, err := b.outbox(3).LeaseLanes(b, b.token(name), ttl, lanes)
	b.must("LeaseLanes", err)
	return as
}

func (b *txBench[Tx]) release(name string, lanes []int) {
	b.must("ReleaseLanes", b.outbox(2).ReleaseLanes(b, b.token(name), lanes))
}

// wantLeases checks that these lanes are leased to these relays for about ttl,
// and that nobody has the others.
func (b *txBench[Tx]) wantLeases(after string, as store.Leases, ttl time.Duration, want map[int]string) {
	for lane, l := range as.Lanes {
		var relay [16]byte
		name, leased := want[lane]
		if leased {
			relay = b.token(name)
		}
		if l.Relay != relay {
			b.failf("after %s lane %d is leased to %q, want %q", after, lane, l.Relay, relay)
		}
		if leased && (l.Left <= ttl-10*b.patience || l.Left > ttl) {
			b.failf("after %s the lease of lane %d has %v left, want about %v", after, lane, l.Left, ttl)
		}
	}
}

func outboxLeased[Tx any](b *txBench[Tx]) {
	b.wantLeases("a LeaseLanes of no lanes", b.lease("a", long), 0, nil)
	want := map[int]string{0: "a", 3: "a", 15: "a"}
	b.wantLeases("a LeaseLanes", b.lease("a", long, 0, 3, 15), long, want)
	want[7] = "b"
	b.wantLeases("a LeaseLanes of lanes that others have, too", b.lease("b", long, 15, 7, 0), long, want)
	b.wantLeases("a LeaseLanes of nothing", b.lease("c", long), long, want)

	as := b.lease("a", 3*long, 3)
	for lane, left := range map[int]time.Duration{0: long, 3: 3 * long, 7: long, 15: long} {
		if l := as.Lanes[lane]; l.Left > left || l.Left < left-10*b.patience {
			b.failf("lane %d was leased for %v, and has %v left when lane 3 is extended", lane, left, l.Left)
		}
	}
}

func outboxReleased[Tx any](b *txBench[Tx]) {
	b.lease("a", long, 0, 1, 2, 3)
	b.lease("b", long, 4, 5)
	b.release("a", []int{1, 4, 9})
	b.wantLeases("a ReleaseLanes of some", b.lease("c", long), long,
		map[int]string{0: "a", 2: "a", 3: "a", 4: "b", 5: "b"})
	b.wantLeases("a LeaseLanes of what was released", b.lease("c", long, 0, 1), long,
		map[int]string{0: "a", 1: "c", 2: "a", 3: "a", 4: "b", 5: "b"})
	b.release("a", nil)
	b.wantLeases("a ReleaseLanes of all", b.lease("c", long), long, map[int]string{1: "c", 4: "b", 5: "b"})
	b.release("d", nil)
	b.wantLeases("a ReleaseLanes of a relay that has none", b.lease("c", long), long,
		map[int]string{1: "c", 4: "b", 5: "b"})
	b.wantLeases("a LeaseLanes of what was released", b.lease("a", long, 0, 1, 2), long,
		map[int]string{0: "a", 1: "c", 2: "a", 4: "b", 5: "b"})
}

// lapses leases lanes to a relay for a short time, and waits until the lease
// lapses.
func (b *txBench[Tx]) lapses(name string, lanes ...int) {
	b.lease(name, short, lanes...)
	b.until("a lease lapses", func() bool {
		as := b.lease("d", long)
		return !slices.ContainsFunc(lanes, func(lane int) bool { return as.Lanes[lane].Left > 0 })
	})
}

func outboxLapsed[Tx any](b *txBench[Tx]) {
	b.lapses("a", 1, 2, 3)
	as := b.lease("d", long)
	for _, lane := range []int{1, 2, 3} {
		if l := as.Lanes[lane]; l.Relay != b.token("a") || l.Left > 0 {
			b.failf("the lease of lane %d, which has lapsed and which nobody has taken, is %+v", lane, l)
		}
	}
	if l := b.lease("b", long, 2).Lanes[2]; l.Relay != b.token("b") || l.Left <= 0 {
		b.failf("the lease of lane 2 had lapsed, was taken, and is %+v", l)
	}
	as = b.lease("a", long, 1, 2)
	if l := as.Lanes[1]; l.Relay != b.token("a") || l.Left <= 0 {
		b.failf("the lease of lane 1 had lapsed, was extended, and is %+v", l)
	}
	if l := as.Lanes[2]; l.Relay != b.token("b") {
		b.failf("a lane that was taken was given back to the relay that had it before: %+v", l)
	}
	if l := as.Lanes[3]; l.Relay != b.token("a") || l.Left > 0 {
		b.failf("the lease of lane 3 had lapsed, was not extended, and is %+v", l)
	}
}

// outboxRelays compares with the number at its start: relays of an earlier run
// may still be alive.
func outboxRelays[Tx any](b *txBench[Tx]) {
	before := b.lease("a", long).Relays - 1
	want := func(after string, got, n int) {
		if got-before != n {
			b.failf("after %s %d relays are alive, want %d", after, got-before, n)
		}
	}
	want("a LeaseLanes of a relay that was alive", b.lease("a", long, 1).Relays, 1)
	want("a LeaseLanes of another", b.lease("b", long).Relays, 2)
	want("a LeaseLanes of a third", b.lease("c", long, 1, 2).Relays, 3)
	b.release("c", []int{2})
	want("a ReleaseLanes of some", b.lease("a", long).Relays, 3)
	b.release("c", nil)
	want("a ReleaseLanes of all", b.lease("a", long).Relays, 2)
	b.lease("c", short, 5)
	b.until("a relay that gives no sign of life is not alive", func() bool {
		return b.lease("a", long).Relays-before == 2
	})
	want("a LeaseLanes of a relay that was not alive", b.lease("c", long).Relays, 3)
}

func outboxLeaseRace[Tx any](b *txBench[Tx]) {
	const n = 16
	var mu sync.Mutex
	told := make([]map[[16]byte]bool, store.Lanes)
	for lane := range told {
		told[lane] = make(map[[16]byte]bool)
	}
	defer b.tokensLeave(n)
	b.together(n, func(i int) {
		var lanes []int
		for j := range store.Lanes {
			lanes = append(lanes, (i*5+j)%store.Lanes)
		}
		var as store.Leases
		b.persist("LeaseLanes", func() (err error) {
			as, err = b.outbox(i).LeaseLanes(b, b.token(fmt.Sprint(i)), long, lanes)
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		for lane, l := range as.Lanes {
			told[lane][l.Relay] = true
		}
	})
	for lane, relays := range told {
		if len(relays) != 1 || relays[people] {
			b.failf("of %d relays at once, %d got lane %d", n, len(relays), lane)
		}
	}
}

// tokensLeave releases the lanes of the relays of a race.
func (b *txBench[Tx]) tokensLeave(n int) {
	for i := range n {
		_ = b.outbox(0).ReleaseLanes(b, b.token(fmt.Sprint(i)), nil)
	}
}
