package storetest

import (
	"context"

	"github.com/effectively-once/once"
)

func contextRules() []rule {
	return []rule{
		{"context/ended",
			"A call whose context has ended fails and changes nothing.",
			contextEnded},
		{"options/same",
			"Options returns the same pointer at every call. It is the result of Options.Ready, and each store has its own.",
			optionsSame},
	}
}

func contextEnded(b *bench) {
	ended, cancel := context.WithCancel(b)
	cancel()
	free := b.key("free")
	fence := b.own(b.key("held"), "me", long)
	before := b.get(fence.Key)
	for name, call := range map[string]func() error{
		"Claim": func() error {
			_, err := b.store.Claim(ended, b.request(free, "me", long))
			return err
		},
		"Extend": func() error { return b.store.Extend(ended, fence, 2*long) },
		"Settle": func() error { return b.store.Settle(ended, done(fence)) },
		"Get": func() error {
			_, err := b.store.Get(ended, fence.Key)
			return err
		},
		"Forget": func() error {
			_, err := b.store.Forget(ended, 1)
			return err
		},
	} {
		if err := call(); err == nil {
			b.failf("%s succeeds with a context that has ended", name)
		}
		b.unchanged(name+" with a context that had ended", before, b.get(fence.Key))
		if rec := b.get(free); !isZero(rec) {
			b.failf("%s with a context that had ended left %s", name, show(rec))
		}
	}
}

func optionsSame(b *bench) {
	seen := make(map[*once.Options]int)
	for i, s := range b.stores {
		o := s.Options()
		switch {
		case o == nil || o != s.Options():
			b.failf("Options returned %p and then %p", o, s.Options())
		case o.Logger == nil || o.MaxOutcome <= 0:
			b.failf("the Options have no defaults: they were not made by Options.Ready")
		}
		if j, ok := seen[o]; ok {
			b.failf("the stores %d and %d share their Options: Open must return stores that share nothing in memory", j, i)
		}
		seen[o] = i
	}
}
