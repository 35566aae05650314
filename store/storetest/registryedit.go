package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

func registryEditRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"registry/rename",
			"RenameConsumer moves all rows of a name and of its rebuilds, with Source, Keys and Seen. The old name is free.",
			registryRename[Tx]},
		{"registry/rename-merges",
			"A name that has the same Keys takes up the rows of another. Rows at one source become one, with the later time.",
			registryRenameMerges[Tx]},
		{"registry/rename-refused",
			"RenameConsumer changes nothing if the name is missing or retired, or if the other one has other Keys or is retired.",
			registryRenameRefused[Tx]},
		{"registry/rename-race",
			"Of a RenameConsumer and Registers of the new name at once, either all see the old Keys, or nothing is renamed.",
			registryRenameRace[Tx]},
		{"registry/retire",
			"RetireConsumer leaves one row, which Register finds. Only a consumer that shares with it is registered, with the old Keys.",
			registryRetire[Tx]},
		{"registry/retire-refused",
			"RetireConsumer changes nothing if the name is missing, retired, seen lately, or one of several with its Keys, or has messages on the shelf.",
			registryRetireRefused[Tx]},
		{"registry/retire-positions",
			"The positions of a retired consumer cannot be moved and have the Log RetiredLog, with their Offset. Those of other consumers stay.",
			registryRetirePositions[Tx]},
	}
}

func (b *txBench[Tx]) editor(i int) store.RegistryEditor {
	return capability[store.RegistryEditor](b.bench, b.txSpread(i))
}

func (b *txBench[Tx]) rename(from, to string) {
	b.must("RenameConsumer", b.editor(0).RenameConsumer(b, b.consumer(from), b.consumer(to)))
}

// wantRegistered checks the consumers of this case, each as "name source keys".
func (b *txBench[Tx]) wantRegistered(want ...string) {
	var got []string
	for _, c := range b.registered() {
		got = append(got, strings.TrimPrefix(c.Name, b.consumer(""))+" "+c.Source+" "+strings.TrimPrefix(c.Keys, b.consumer("")))
	}
	if !slices.Equal(got, want) {
		b.failf("registered are %q, want %q", got, want)
	}
}

func (b *txBench[Tx]) at(name, source, keys string) store.Consumer {
	return store.Consumer{Name: b.consumer(name), Source: source, Keys: b.consumer(keys)}
}

func registryRename[Tx any](b *txBench[Tx]) {
	b.register(b.at("a", "queue 1 [x=1]", "first"))
	second := b.at("a", "queue 2", "first")
	second.SharedWith = "queue 1"
	b.register(second)
	b.register(b.at("a@2", "queue 1", "first@2"))
	b.register(b.at("aa", "queue 3", "aa"))
	b.register(b.at("z", "queue 4", "z"))
	b.until("Seen grows", func() bool { return b.registered()[4].Seen >= 2*short })
	b.rename("a", "b")
	b.wantRegistered("aa queue 3 aa", "b queue 1 [x=1] first", "b queue 2 first", "b@2 queue 1 first@2", "z queue 4 z")
	if all := b.registered(); all[1].Seen < 2*short || all[2].Seen < 2*short || all[3].Seen < 2*short {
		b.failf("renaming was taken for a sign of life: %+v", all)
	}
	b.wantConsumer("Register of the new name", b.register(b.at("b", "queue 1", "b")), b.at("b", "queue 1 [x=1]", "first"))
	b.wantConsumer("Register of the new name at the second source", b.register(b.at("b", "queue 2", "b")), b.at("b", "queue 2", "first"))
	b.wantConsumer("Register at another source", b.register(b.at("b", "queue 3", "b")), b.at("b", "queue 1 [x=1]", "first"))
	if before := b.register(b.at("a", "queue 5", "a")); before != (store.Consumer{}) {
		b.failf("the old name is not free: %+v", before)
	}
	b.rename("b", "c")
	b.rename("c", "d")
	b.wantRegistered("a queue 5 a", "aa queue 3 aa", "d queue 1 [x=1] first", "d queue 2 first", "d@2 queue 1 first@2", "z queue 4 z")
}

func registryRenameMerges[Tx any](b *txBench[Tx]) {
	b.register(b.at("b", "queue 1", "first"))
	b.until("Seen grows", func() bool { return b.registered()[0].Seen >= 20*short })
	b.register(b.at("a", "queue 1 [x=1]", "first"))
	second := b.at("a", "queue 2", "first")
	second.SharedWith = "queue 1"
	b.register(second)
	began := time.Now()
	if seen := b.registered()[0].Seen; seen > 8*short {
		return // the machine was too slow to tell the two rows apart
	}
	b.rename("a", "b")
	b.wantRegistered("b queue 1 [x=1] first", "b queue 2 first")
	if seen := b.registered()[0].Seen; seen > 10*short+time.Since(began) { // times may be rounded
		b.failf("two rows became one, with the earlier time: it was seen %v ago", seen)
	}
}

func registryRenameRefused[Tx any](b *txBench[Tx]) {
	for _, name := range []string{"a", "b", "c", "d"} {
		b.register(b.at(name, "queue "+name, name))
	}
	b.register(b.at("a@2", "queue a", "a@2"))
	b.register(b.at("e@2", "queue e", "e@2"))
	as := store.RetiredSource(time.Now(), "ann", "gone")
	b.must("RetireConsumer", b.editor(0).RetireConsumer(b, store.Retirement{Name: b.consumer("c"), As: as}))
	want := []string{"a queue a a", "a@2 queue a a@2", "b queue b b", "c " + as + " c", "d queue d d", "e@2 queue e e@2"}
	for names, wanted := range map[[2]string]error{
		{"x", "y"}: store.ErrNoConsumer,
		{"a", "b"}: store.ErrConsumerState,
		{"a", "a"}: store.ErrConsumerState,
		{"a", "e"}: store.ErrConsumerState, // its rebuild would take the keys of another
		{"c", "y"}: store.ErrConsumerState,
		{"d", "c"}: store.ErrConsumerState,
	} {
		if err := b.editor(0).RenameConsumer(b, b.consumer(names[0]), b.consumer(names[1])); !errors.Is(err, wanted) {
			b.failf("RenameConsumer of %q returned %v, want %v", names, err, wanted)
		}
		b.wantRegistered(want...)
	}
	for _, names := range [][2]string{{"", "x"}, {"a", ""}, {b.consumer("a"), strings.Repeat("x", 256)}, {b.consumer("a"), "x\x00"}} {
		if err := b.editor(0).RenameConsumer(b, names[0], names[1]); err == nil {
			b.failf("RenameConsumer of %.30q returned nil", names)
		}
	}
	b.wantRegistered(want...)
}

func registryRenameRace[Tx any](b *txBench[Tx]) {
	const n = 8
	b.register(b.at("a", "queue", "first"))
	var mu sync.Mutex
	renamed, keys := false, make(map[string]bool)
	b.together(n, func(i int) {
		if i == 0 {
			var err error
			b.persist("RenameConsumer", func() error {
				if err = b.editor(i).RenameConsumer(b, b.consumer("a"), b.consumer("b")); errors.Is(err, store.ErrConsumerState) {
					return nil
				}
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			renamed = err == nil
			return
		}
		var before store.Consumer
		b.persist("Register", func() (err error) {
			before, err = b.registry(i).Register(b, b.at("b", "queue", "b"))
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		if before.Keys == "" {
			before.Keys = b.consumer("b")
		}
		keys[strings.TrimPrefix(before.Keys, b.consumer(""))] = true
	})
	switch {
	case len(keys) == 1 && keys["first"] && renamed:
		b.wantRegistered("b queue first")
	case len(keys) == 1 && keys["b"] && !renamed:
		b.wantRegistered("a queue first", "b queue b")
	default:
		b.failf("the Registers of the new name got the keys %v, renamed: %v", keys, renamed)
	}
}

func registryRetire[Tx any](b *txBench[Tx]) {
	b.register(b.at("a", "queue 1", "first"))
	second := b.at("a", "queue 2", "first")
	second.SharedWith = "queue 1"
	b.register(second)
	b.register(b.at("b", "queue 1", "b"))
	b.until("Seen grows", func() bool { return b.registered()[1].Seen >= 2*short })
	as := store.RetiredSource(time.Now(), "ann", "gone")
	gone := store.Retirement{Name: b.consumer("a"), As: as, Silence: short}
	b.must("RetireConsumer", b.editor(0).RetireConsumer(b, gone))
	b.must("the same again", b.editor(0).RetireConsumer(b, gone))
	retired := b.at("a", as, "first")
	b.wantRegistered("a "+as+" first", "b queue 1 b")
	if seen := b.registered()[0].Seen; seen < 2*short {
		b.failf("it was seen %v ago by its row, and has not been at work since it was retired", seen)
	}
	for _, source := range []string{"queue 1", "queue 2", "queue 3"} {
		b.wantConsumer("Register of a retired name", b.register(b.at("a", source, "a")), retired)
	}
	b.wantRegistered("a "+as+" first", "b queue 1 b")
	again := b.at("a", "queue 1", "a")
	again.SharedWith = store.RetiredSource(time.Now().Add(long), "ann", "gone")
	b.wantConsumer("Register that shares with another retirement", b.register(again), retired)
	again.SharedWith = as
	b.wantConsumer("Register that shares with the retirement", b.register(again), b.at("a", "queue 1", "first"))
	if store.IsRetired(b.registered(), b.consumer("a")) {
		b.failf("a retired consumer came back, and counts as retired")
	}
	gone.As, gone.Silence = store.RetiredSource(time.Now(), "bob", "again"), 0
	b.must("retiring it again", b.editor(0).RetireConsumer(b, gone))
	b.wantRegistered("a "+gone.As+" first", "b queue 1 b")
}

func registryRetireRefused[Tx any](b *txBench[Tx]) {
	for _, name := range []string{"a", "b", "c", "e"} {
		b.register(b.at(name, "queue "+name, name))
	}
	b.register(b.at("d", "queue c", "c")) // by RenamedFrom
	want := func() {
		b.wantRegistered("a queue a a", "b queue b b", "c queue c c", "d queue c c", "e queue e e")
	}
	refused := func(name string, silence time.Duration, wanted error) {
		r := store.Retirement{Name: b.consumer(name), As: store.RetiredSource(time.Now(), "ann", "gone"), Silence: silence}
		if err := b.editor(0).RetireConsumer(b, r); !errors.Is(err, wanted) {
			b.failf("RetireConsumer of %q with a silence of %v returned %v, want %v", name, silence, err, wanted)
		}
		want()
	}
	refused("x", 0, store.ErrNoConsumer)
	refused("a", long, store.ErrConsumerState)
	refused("c", 0, store.ErrConsumerState)
	refused("d", 0, store.ErrConsumerState)
	shelf := capability[store.Shelf](b.bench, b.txStore)
	for i, state := range []store.ShelfState{store.Waiting, store.Parked} {
		m := store.Shelved{Consumer: b.consumer("b"), Key: fmt.Sprint(i), Message: broker.Message{ID: fmt.Sprint(i), Topic: "t"}, State: state}
		b.must("Shelve", shelf.Shelve(b, []store.Shelved{m}))
		refused("b", 0, store.ErrShelfInUse)
		found, err := shelf.Shelved(b, store.ShelfQuery{Consumer: m.Consumer, States: []store.ShelfState{state}})
		b.must("Shelved", err)
		found[0].State, found[0].History = store.Discarded, "discarded"
		b.must("Change", shelf.Change(b, found[0]))
	}
	b.must("Shelve", shelf.Shelve(b, []store.Shelved{store.NewQueued(b.consumer("b"), "queued", broker.Message{ID: "queued", Topic: "t"})}))
	refused("b", 0, store.ErrShelfInUse)
	r := store.Retirement{Name: b.consumer("b"), As: store.RetiredSource(time.Now(), "ann", "gone"), Queued: true}
	b.must("RetireConsumer after all but the queue were discarded", b.editor(0).RetireConsumer(b, r))
	r.As = store.RetiredSource(time.Now().Add(time.Second), "ann", "gone")
	if err := b.editor(0).RetireConsumer(b, r); !errors.Is(err, store.ErrConsumerState) {
		b.failf("RetireConsumer of a retired consumer returned %v", err)
	}
}

func registryRetirePositions[Tx any](b *txBench[Tx]) {
	positions, ok := once.As[store.Positions[Tx]](b.txStore)
	if !ok {
		return
	}
	b.register(b.at("b", "log", "a"))
	moved := make(map[string]store.Position)
	for _, consumer := range []string{"a", "other"} {
		from, err := positions.OpenPosition(b, b.consumer(consumer), "0")
		b.must("OpenPosition", err)
		from.Shelved = false
		to := from
		to.Log, to.Offset, to.Digest = "log", 7, [16]byte{1}
		b.must("TransactAt", positions.TransactAt(b, from, to, func(Tx) error { return nil }))
		moved[consumer] = to
	}
	begun, err := positions.OpenPosition(b, b.consumer("a"), "1")
	b.must("OpenPosition of a partition without messages", err)
	b.must("RetireConsumer", b.editor(0).RetireConsumer(b, store.Retirement{Name: b.consumer("b"), As: store.RetiredSource(time.Now(), "ann", "gone")}))
	for consumer, from := range moved {
		to := from
		to.Offset = 8
		err := positions.TransactAt(b, from, to, func(Tx) error { return nil })
		if retired := consumer == "a"; retired != errors.Is(err, once.ErrLeaseLost) || !retired && err != nil {
			b.failf("TransactAt of %q returned %v", consumer, err)
		}
	}
	rows, err := positions.Positions(b, b.consumer("a"))
	b.must("Positions", err)
	want := moved["a"]
	want.Log, want.Epoch = store.RetiredLog, want.Epoch+1
	begun.Epoch++
	if len(rows) != 2 || rows[0] != want || rows[1] != begun {
		b.failf("the positions of a retired consumer are %+v, want %+v and %+v", rows, want, begun)
	}
}
