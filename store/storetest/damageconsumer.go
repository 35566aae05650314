package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func damageRegistryRules[Tx any](damages []Damage) (all []txRule[Tx]) {
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Consumer != nil }) {
		all = append(all, txRule[Tx]{"damage/consumers",
			"A damaged consumer is listed with Damaged set, beside the others, which register as before. It never gets other Keys.",
			damageConsumers[Tx]})
	}
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Registry != nil }) {
		all = append(all, txRule[Tx]{"damage/registry",
			"If all consumers are damaged, Consumers returns a row that says so, and Register is once.ErrCorrupt.",
			damageRegistry[Tx]})
	}
	return all
}

func damagePositionRules[Tx any](damages []Damage) (all []txRule[Tx]) {
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Position != nil }) {
		all = append(all, txRule[Tx]{"damage/positions",
			"A damaged position is listed with Damaged set, and is neither opened nor moved until it is set. The others are as they were.",
			damagePositions[Tx]})
	}
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Partitions != nil }) {
		all = append(all, txRule[Tx]{"damage/partitions",
			"If the partitions of a consumer are damaged, Positions says so, and its positions are opened, moved and created.",
			damagePartitions[Tx]})
	}
	return all
}

// undoable is a damage that can be undone.
type undoable = func(ctx context.Context) (undo func(context.Context) error, err error)

// damaged does a damage, and undoes it when do has ended.
func (b *txBench[Tx]) damaged(damage undoable, do func()) {
	undo, err := damage(b)
	b.must("the damage", err)
	undone := false
	defer func() {
		if !undone { // other cases register consumers
			_ = undo(context.WithoutCancel(b))
		}
	}()
	do()
	undone = true
	b.must("the end of the damage", undo(b))
}

// split returns the rows of a registry that are whole, of this case, and those that
// are damaged.
func (b *txBench[Tx]) split() (whole []store.Consumer, damaged []store.Consumer) {
	all, err := b.registry(1).Consumers(b)
	b.must("Consumers beside a damaged row", err)
	for _, c := range all {
		switch {
		case c.Damaged != nil:
			b.wantCorrupt("Damaged of a consumer", c.Damaged)
			damaged = append(damaged, c)
		case len(c.Name) >= len(b.run) && c.Name[:len(b.run)] == b.run:
			whole = append(whole, c)
		}
	}
	return whole, damaged
}

func damageConsumers[Tx any](b *txBench[Tx]) {
	eachDamage(b.bench, func(d Damage) func(context.Context, string) (func(context.Context) error, error) { return d.Consumer },
		func(f func(context.Context, string) (func(context.Context) error, error)) bool { return f != nil },
		func(name string, damage func(context.Context, string) (func(context.Context) error, error)) {
			of := func(nth string) store.Consumer {
				return store.Consumer{Name: b.consumer(name + nth), Source: "queue " + nth, Keys: "keys " + name + nth}
			}
			others, bad := []store.Consumer{of("a"), of("c")}, of("b")
			for _, c := range append([]store.Consumer{bad}, others...) {
				b.register(c)
			}
			b.damaged(func(ctx context.Context) (func(context.Context) error, error) { return damage(ctx, bad.Name) }, func() {
				damagedConsumer(b, bad, others)
				if _, err := b.registry(2).Register(b, of("new")); err != nil { // the damaged row may be its own
					b.wantCorrupt("Register of a new name beside a damaged row", err)
				}
			})
			b.wantConsumer("Register after the damage was undone", b.register(bad), bad)
		})
}

// damagedConsumer checks what becomes of a consumer whose row is damaged, and of
// others.
func damagedConsumer[Tx any](b *txBench[Tx], bad store.Consumer, others []store.Consumer) {
	check := func() {
		whole, damaged := b.split()
		for _, c := range others {
			i := slices.IndexFunc(whole, func(is store.Consumer) bool { return is.Name == c.Name })
			if i < 0 {
				b.failf("beside a damaged row, Consumers returned %+v, without %q", whole, c.Name)
			}
			b.wantConsumer("Consumers beside a damaged row", whole[i], c)
		}
		if slices.ContainsFunc(whole, func(is store.Consumer) bool { return is.Name == bad.Name }) || len(damaged) != 1 {
			b.failf("beside a damaged row, Consumers returned %d with Damaged set, and of this case %+v", len(damaged), whole)
		}
		is := damaged[0]
		if is.Name != "" && is.Name != bad.Name || is.Source != "" && is.Source != bad.Source || is.Keys != "" && is.Keys != bad.Keys {
			b.failf("Consumers returned a damaged row as %+v, of %+v", is, bad)
		}
	}
	check()
	for _, c := range others {
		c.Keys = "more keys"
		before := b.register(c)
		if before.Keys == c.Keys || before.Name != c.Name {
			b.failf("beside a damaged row, Register of %q returned %+v", c.Name, before)
		}
	}
	moved := store.Consumer{Name: bad.Name, Source: "another queue", Keys: "other keys"}
	before, err := b.registry(1).Register(b, moved)
	switch {
	case err != nil:
		b.wantCorrupt("Register of a damaged name at another source", err)
	case before.Keys != bad.Keys || before.Source == moved.Source:
		b.failf("Register of a damaged name at another source returned %+v", before)
	}
	check()
	again := bad
	again.Keys = "other keys"
	before, err = b.registry(2).Register(b, again)
	if err != nil {
		b.wantCorrupt("Register of a damaged name", err)
		check()
		return
	}
	b.wantConsumer("Register of a name whose row was damaged", before, bad)
	whole, damaged := b.split()
	i := slices.IndexFunc(whole, func(is store.Consumer) bool { return is.Name == bad.Name })
	if len(damaged) > 0 || i < 0 {
		b.failf("Register repaired a row, and Consumers returned %d that are damaged, and of this case %+v", len(damaged), whole)
	}
	b.wantConsumer("Consumers after a row was repaired", whole[i], bad)
}

func damageRegistry[Tx any](b *txBench[Tx]) {
	eachDamage(b.bench, func(d Damage) undoable { return d.Registry }, func(f undoable) bool { return f != nil },
		func(name string, damage undoable) {
			known := store.Consumer{Name: b.consumer(name + "known"), Source: "queue", Keys: "keys " + name}
			b.register(known)
			b.damaged(damage, func() {
				for _, c := range []store.Consumer{known, {Name: b.consumer(name + "new"), Source: "queue"}} {
					_, err := b.registry(1).Register(b, c)
					b.wantCorrupt("Register of "+c.Name, err)
				}
				whole, damaged := b.split()
				if len(whole) > 0 || len(damaged) == 0 || damaged[0].IsLegible() {
					b.failf("Consumers returned %+v, and that %+v are damaged", whole, damaged)
				}
			})
			b.wantConsumer("Register after the damage was undone", b.register(known), known)
		})
}

func damagePositions[Tx any](b *txBench[Tx]) {
	eachDamage(b.bench, func(d Damage) func(context.Context, string, string) error { return d.Position },
		func(f func(context.Context, string, string) error) bool { return f != nil },
		func(name string, damage func(context.Context, string, string) error) {
			consumer := b.consumer(name)
			var at []store.Position
			for _, partition := range []string{"0", "1", "2"} {
				from := b.open(consumer, partition)
				to := moved(from, 5)
				b.move(from, to, "effect")
				at = append(at, to)
			}
			b.must("the damage", damage(b, consumer, "1"))
			all, err := b.positions(1).Positions(b, consumer)
			b.must("Positions beside a damaged one", err)
			bad := b.wantAroundPosition(all, at)
			b.wantCorrupt("Damaged of a position", bad.Damaged)
			effect := name + "moved"
			_, err = b.positions(1).OpenPosition(b, consumer, "1")
			b.wantCorrupt("OpenPosition of a damaged position", err)
			next := moved(at[1], 6)
			called := false
			err = b.positions(0).TransactAt(b, at[1], next, func(tx Tx) error { called = true; return b.effect(tx, effect) })
			if err != nil && called {
				b.failf("TransactAt of a damaged position called body, and returned %v", err)
			}
			if err != nil { // else what is damaged plays no part in a move
				if !errors.Is(err, once.ErrLeaseLost) { // which who had it gets, if nothing of it is left
					b.wantCorrupt("TransactAt of a damaged position", err)
				}
				b.wantEffects(effect, 0)
				_, err = b.positions(1).OpenPosition(b, consumer, "1")
				b.wantCorrupt("OpenPosition of a damaged position", err)
			}
			for _, i := range []int{0, 2} {
				b.move(at[i], moved(at[i], 6), "effect")
				b.open(consumer, at[i].Partition)
			}
			set := moved(at[1], 9)
			b.must("SetPosition of a damaged position", b.positions(0).SetPosition(b, set))
			is := b.stored(set)
			if is.Damaged != nil || is.Log != set.Log || is.Offset != set.Offset || is.Digest != set.Digest || is.Epoch <= at[1].Epoch {
				b.failf("a damaged position was set to %+v, and is %+v", set, is)
			}
			b.notMoved("TransactAt of who had a damaged position before it was set", at[1], next, once.ErrLeaseLost)
			opened := b.open(consumer, "1")
			if opened.Epoch <= is.Epoch || opened.Offset != set.Offset {
				b.failf("a damaged position was set to %+v, and opened as %+v", set, opened)
			}
			b.move(opened, moved(opened, 10), "effect")
		})
}

// wantAroundPosition fails unless there are three positions, of which the second is
// damaged, which it returns.
func (b *txBench[Tx]) wantAroundPosition(all, want []store.Position) (bad store.Position) {
	if len(all) != 3 {
		b.failf("beside a damaged position, Positions returned %+v", all)
	}
	var good []store.Position
	for _, p := range all {
		switch {
		case p.Damaged == nil:
			good = append(good, p)
		case p.Consumer != want[1].Consumer || p.Partition != "" && p.Partition != want[1].Partition:
			b.failf("Positions returned a damaged position as %+v", p)
		default:
			bad = p
		}
	}
	if !slices.Equal(good, []store.Position{want[0], want[2]}) {
		b.failf("beside a damaged position, Positions returned %+v", good)
	}
	return bad
}

func damagePartitions[Tx any](b *txBench[Tx]) {
	eachDamage(b.bench, func(d Damage) func(context.Context, string) (func(context.Context) error, error) { return d.Partitions },
		func(f func(context.Context, string) (func(context.Context) error, error)) bool { return f != nil },
		func(name string, damage func(context.Context, string) (func(context.Context) error, error)) {
			consumer := b.consumer(name)
			first := b.open(consumer, "0")
			b.move(first, moved(first, 5), "effect")
			b.damaged(func(ctx context.Context) (func(context.Context) error, error) { return damage(ctx, consumer) }, func() {
				all, err := b.positions(1).Positions(b, consumer)
				b.must("Positions without their list", err)
				if err := store.Corrupt(all); !errors.Is(err, once.ErrCorrupt) {
					b.failf("the partitions of a consumer are damaged, and Positions returned %+v", all)
				}
				again := b.open(consumer, "0")
				if again.Offset != 5 || again.Epoch <= first.Epoch {
					b.failf("the partitions of a consumer are damaged, and OpenPosition returned %+v", again)
				}
				b.move(again, moved(again, 6), "effect")
				b.must("SetPosition", b.positions(1).SetPosition(b, moved(again, 7)))
				added := b.open(consumer, "1")
				if added.Epoch != 1 || added.Log != "" {
					b.failf("OpenPosition of a new partition returned %+v", added)
				}
				b.move(added, moved(added, 1), "effect")
			})
			if got := b.open(consumer, "1"); got.Offset != 1 {
				b.failf("OpenPosition of a partition that was opened meanwhile returned %+v", got)
			}
			all, err := b.positions(0).Positions(b, consumer)
			b.must("Positions", err)
			if len(all) != 2 || all[0].Offset != 7 || all[1].Offset != 1 || store.Corrupt(all) != nil {
				b.failf("after the damage was undone, Positions returned %s", fmt.Sprintf("%+v", all))
			}
		})
}
