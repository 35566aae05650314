package storetest

import (
	"context"
	"slices"
	"sync"

	"github.com/effectively-once/once/store"
)

func outboxPresenceRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"outbox/present",
			"A relay that has appeared is not missing until its presence is closed, and may lease lanes.",
			outboxPresent[Tx]},
		{"outbox/stranger",
			"Look reports no ID as missing that AppearRelay has not returned.",
			outboxStranger[Tx]},
		{"outbox/present-race",
			"Relays that appear at once have different IDs, and see each other.",
			outboxPresentRace[Tx]},
	}
}

// appear returns a new presence, or nil if nothing can tell that a process has
// ended. A store may have room for few.
func (b *txBench[Tx]) appear(i int) store.Present {
	p, err := capability[store.Presence](b.bench, b.txSpread(i)).AppearRelay(b)
	b.must("AppearRelay", err)
	return p
}

// missing returns which of the others a relay finds missing.
func (b *txBench[Tx]) missing(p store.Present, others ...[16]byte) [][16]byte {
	missing, err := p.Look(b, others)
	b.must("Look", err)
	return missing
}

func outboxPresent[Tx any](b *txBench[Tx]) {
	p := b.appear(0)
	if p == nil {
		return
	}
	defer p.Close()
	other := b.appear(1)
	if other == nil {
		return
	}
	if got := b.missing(p, other.ID()); len(got) > 0 {
		b.failf("a relay that is present is missing: %x", got)
	}
	if got := b.missing(other, p.ID()); len(got) > 0 {
		b.failf("the first relay is missing after another has appeared: %x", got)
	}
	as, err := b.outbox(2).LeaseLanes(b, other.ID(), long, []int{4})
	b.must("LeaseLanes", err)
	if as.Lanes[4].Relay != other.ID() {
		b.failf("the relay that has appeared leased lane 4, which belongs to %x", as.Lanes[4].Relay)
	}
	other.Close()
	b.until("a relay whose presence was closed is missing", func() bool {
		return slices.Equal(b.missing(p, p.ID(), other.ID()), [][16]byte{other.ID()})
	})
	b.must("ReleaseLanes of a relay that is missing", b.outbox(3).ReleaseLanes(b, other.ID(), nil))
	third := b.appear(1)
	if third == nil {
		b.failf("no relay appears after another has left")
	}
	defer third.Close()
	if got := b.missing(third, p.ID(), other.ID()); !slices.Equal(got, [][16]byte{other.ID()}) {
		b.failf("a relay that has appeared later finds %x missing, want %x", got, other.ID())
	}
	ended, cancel := context.WithCancel(b)
	cancel()
	if _, err := third.Look(ended, nil); err == nil {
		b.failf("Look whose context has ended returned no error")
	}
}

func outboxStranger[Tx any](b *txBench[Tx]) {
	p := b.appear(0)
	if p == nil {
		return
	}
	defer p.Close()
	if got := b.missing(p, b.token("a"), people, b.token("b")); len(got) > 0 {
		b.failf("Look reports relays without presence as missing: %x", got)
	}
}

func outboxPresentRace[Tx any](b *txBench[Tx]) {
	const n = 4
	var mu sync.Mutex
	present := make(map[[16]byte]store.Present)
	defer func() {
		for _, p := range present {
			p.Close()
		}
	}()
	b.together(n, func(i int) {
		if p := b.appear(i); p != nil {
			mu.Lock()
			defer mu.Unlock()
			if present[p.ID()] != nil {
				b.failf("two relays have the ID %x", p.ID())
			}
			present[p.ID()] = p
		}
	})
	var all [][16]byte
	for id := range present {
		all = append(all, id)
	}
	for id, p := range present {
		others := slices.DeleteFunc(slices.Clone(all), func(other [16]byte) bool { return other == id })
		if got := b.missing(p, others...); len(got) > 0 {
			b.failf("of %d relays that are present, one finds %d missing", n, len(got))
		}
	}
}
