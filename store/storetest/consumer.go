package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/store"
)

func registryRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"registry/first",
			"Register returns the zero Consumer if nothing was known of the name. An empty Keys becomes the Name.",
			registryFirst[Tx]},
		{"registry/keys-stay", "Keys is written only when the name is new.", registryKeysStay[Tx]},
		{"registry/source-stays",
			"A name is registered at another source only if SharedWith is one of its sources. Otherwise nothing is written, and before has its first source.",
			registrySourceStays[Tx]},
		{"registry/shared",
			"A name at several sources has one Keys, and its own Seen at each source.",
			registryShared[Tx]},
		{"registry/source-facts",
			"Sources with the same name differ if a fact that both have differs. A fact that is learned later is added.",
			registrySourceFacts[Tx]},
		{"registry/source-race",
			"When several sources are registered at once for a new name, exactly one succeeds.",
			registrySourceRace[Tx]},
		{"registry/seen", "Seen is the time since the latest Register.", registrySeen[Tx]},
		{"registry/names",
			"Names are kept in full and compared byte by byte. Consumers returns all, by name.",
			registryNames[Tx]},
		{"registry/race",
			"When a name is registered several times at once for the first time, one Keys is written.",
			registryRace[Tx]},
	}
}

func (b *txBench[Tx]) registry(i int) store.Registry {
	return capability[store.Registry](b.bench, b.txSpread(i))
}

// consumer returns the name of a consumer that no other case uses.
func (b *txBench[Tx]) consumer(name string) string { return b.run + " " + name }

func (b *txBench[Tx]) register(c store.Consumer) (before store.Consumer) {
	before, err := b.registry(0).Register(b, c)
	b.must("Register", err)
	return before
}

// registered returns the consumers of this case.
func (b *txBench[Tx]) registered() (mine []store.Consumer) {
	all, err := b.registry(1).Consumers(b)
	b.must("Consumers", err)
	for _, c := range all {
		if strings.HasPrefix(c.Name, b.run) {
			mine = append(mine, c)
		}
	}
	return mine
}

func (b *txBench[Tx]) wantConsumer(doing string, got, want store.Consumer) {
	if got.Name != want.Name || got.Source != want.Source || got.Keys != want.Keys || got.Seen < 0 || got.Seen > long {
		b.failf("%s returned %+v, want %+v", doing, got, want)
	}
}

func registryFirst[Tx any](b *txBench[Tx]) {
	name := b.consumer("a")
	if before := b.register(store.Consumer{Name: name, Source: "queue 1", Seen: long}); before != (store.Consumer{}) {
		b.failf("the first Register returned %+v", before)
	}
	want := store.Consumer{Name: name, Source: "queue 1", Keys: name}
	b.wantConsumer("the second Register", b.register(store.Consumer{Name: name, Source: "queue 1"}), want)
	renamed := store.Consumer{Name: b.consumer("b"), Source: "queue 2", Keys: name}
	b.register(renamed)
	b.wantConsumer("a Register with Keys", b.register(renamed), renamed)
}

func registryKeysStay[Tx any](b *txBench[Tx]) {
	first := store.Consumer{Name: b.consumer("a"), Source: "queue 1", Keys: "first"}
	b.register(first)
	for _, keys := range []string{"second", "", first.Name} {
		b.wantConsumer("Register", b.register(store.Consumer{Name: first.Name, Source: "queue 1", Keys: keys}), first)
	}
	all := b.registered()
	if len(all) != 1 {
		b.failf("one consumer was registered, and Consumers returned %+v", all)
	}
	b.wantConsumer("Consumers", all[0], first)
}

func registrySourceStays[Tx any](b *txBench[Tx]) {
	first := store.Consumer{Name: b.consumer("a"), Source: "queue 1", Keys: "first"}
	b.register(first)
	for _, shared := range []string{"", "queue 2", "queue 3", "queue 1 "} {
		other := store.Consumer{Name: first.Name, Source: "queue 2", SharedWith: shared}
		b.wantConsumer("a Register at another source", b.register(other), first)
	}
	if all := b.registered(); len(all) != 1 || all[0].Source != "queue 1" {
		b.failf("a name was registered at one source, and refused at others, and Consumers returned %+v", all)
	}
	b.wantConsumer("a Register at the first source", b.register(first), first)
}

func registryShared[Tx any](b *txBench[Tx]) {
	name := b.consumer("a")
	b.register(store.Consumer{Name: name, Source: "queue 1", Keys: "first"})
	want := store.Consumer{Name: name, Source: "queue 2", Keys: "first"}
	shared := store.Consumer{Name: name, Source: "queue 2", Keys: "second", SharedWith: "queue 1"}
	b.wantConsumer("a shared Register", b.register(shared), want)
	shared.SharedWith = ""
	b.wantConsumer("the same without SharedWith", b.register(shared), want)
	third := store.Consumer{Name: name, Source: "queue 3", SharedWith: "queue 2"}
	want.Source = "queue 3"
	b.wantConsumer("a Register that shares with the second", b.register(third), want)
	all := b.registered()
	if len(all) != 3 {
		b.failf("a name was registered at three sources, and Consumers returned %+v", all)
	}
	for i, c := range all {
		b.wantConsumer("Consumers", c, store.Consumer{Name: name, Source: fmt.Sprint("queue ", i+1), Keys: "first"})
	}
	b.until("Seen grows at the others", func() bool {
		b.register(shared)
		all := b.registered()
		return all[0].Seen >= 2*short && all[2].Seen >= 2*short && all[1].Seen < all[0].Seen
	})
}

func registrySourceFacts[Tx any](b *txBench[Tx]) {
	name := b.consumer("a")
	at := func(source, shared string) store.Consumer {
		return store.Consumer{Name: name, Source: source, Keys: "first", SharedWith: shared}
	}
	want := func(doing string, c store.Consumer, source string) {
		c.Source, c.Keys, c.SharedWith = source, "first", ""
		b.wantConsumer(doing, b.register(at(doing, "")), c)
	}
	all := func(sources ...string) {
		got := b.registered()
		for i, c := range got {
			if len(got) != len(sources) || c.Source != sources[i] {
				b.failf("registered at %q, and Consumers returned %+v", sources, got)
			}
		}
	}
	c := at("queue", "")
	b.register(c)
	want("queue [x=1]", c, "queue [x=1]")
	want("queue", c, "queue [x=1]")
	want("queue [x=2]", c, "queue [x=1]")
	want("queue [x=2&y=1]", c, "queue [x=1]")
	all("queue [x=1]")
	want("queue [y=1]", c, "queue [x=1&y=1]")
	all("queue [x=1&y=1]")
	c.Source = "queue [x=2]"
	b.wantConsumer("a shared Register", b.register(at("queue [x=2]", "queue [x=1]")), c)
	want("queue [x=2&y=1]", c, "queue [x=2&y=1]")
	want("queue [x=3]", c, "queue [x=1&y=1]")
	c.Source = "queue [x=3]"
	b.wantConsumer("a Register that shares with the second", b.register(at("queue [x=3]", "queue [x=2]")), c)
	want("queue [x=3&y=1]", c, "queue [x=3&y=1]")
	all("queue [x=1&y=1]", "queue [x=2&y=1]", "queue [x=3&y=1]")
}

func registrySourceRace[Tx any](b *txBench[Tx]) {
	const n = 16
	name := b.consumer("a")
	var mu sync.Mutex
	in := 0
	b.together(n, func(i int) {
		c := store.Consumer{Name: name, Source: fmt.Sprint("queue ", i)}
		var before store.Consumer
		b.persist("Register", func() (err error) {
			before, err = b.registry(i).Register(b, c)
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		if before.Name == "" || before.Source == c.Source {
			in++
		}
	})
	if all := b.registered(); in != 1 || len(all) != 1 {
		b.failf("%d of %d sources were registered, and Consumers returned %+v", in, n, all)
	}
}

func registrySeen[Tx any](b *txBench[Tx]) {
	c := store.Consumer{Name: b.consumer("a"), Source: "queue"}
	b.register(c)
	b.until("Seen grows", func() bool { return b.registered()[0].Seen >= 2*short })
	last := time.Now()
	if before := b.register(c); before.Seen < 2*short && !b.learnsTime { // by another store's time
		b.failf("Register returned a Seen of %v, and Consumers a longer one before it", before.Seen)
	}
	b.until("Seen begins anew", func() bool {
		since, now := last, time.Now()
		last = now
		before := b.register(c)
		return before.Seen >= 0 && before.Seen < time.Since(since)+short
	})
}

func registryNames[Tx any](b *txBench[Tx]) {
	var want []string
	for _, name := range b.hardNames() {
		want = append(want, b.consumer(name))
	}
	for _, name := range want {
		if before := b.register(store.Consumer{Name: name, Source: name, Keys: name}); before != (store.Consumer{}) {
			b.failf("the key %q was taken for %+v", name, before)
		}
	}
	slices.Sort(want)
	var got []string
	for _, c := range b.registered() {
		b.wantConsumer("Consumers", c, store.Consumer{Name: c.Name, Source: c.Name, Keys: c.Name})
		got = append(got, c.Name)
	}
	if !slices.Equal(got, want) {
		b.failf("Consumers returned %q, want %q", got, want)
	}
}

// hardNames differ from each other. With the prefix that makes a name unique
// they have at most 255 bytes.
func (b *txBench[Tx]) hardNames() []string {
	room := 255 - len(b.consumer(""))
	return []string{"a", "A", "a ", "a  ", "\u00e1", "a\u0301", "ß", "ss", "名前", "🙂", "a'b\"c`d", `a\b`, "%_",
		"{now} @key $1 ?",
		strings.Repeat("x", room), strings.Repeat("x", room-1) + "y", strings.Repeat("🙂", room/4)}
}

func registryRace[Tx any](b *txBench[Tx]) {
	const n = 16
	name := b.consumer("a")
	var mu sync.Mutex
	firsts, seen := 0, make(map[string]bool)
	b.together(n, func(i int) {
		var before store.Consumer
		b.persist("Register", func() (err error) {
			before, err = b.registry(i).Register(b, store.Consumer{Name: name, Source: "queue", Keys: fmt.Sprint("keys ", i)})
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		if before == (store.Consumer{}) {
			firsts++
		} else {
			seen[before.Keys] = true
		}
	})
	if firsts != 1 || len(seen) != 1 || !seen[b.registered()[0].Keys] {
		b.failf("%d of %d were first, and the others got %d different Keys", firsts, n, len(seen))
	}
}
