package storetest_test

import (
	"context"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// wrapper is a store around another, as users write it.
type wrapper struct{ once.Store }

func (w wrapper) Unwrap() once.Store { return w.Store }

// lister is a wrapper that sees a capability's calls.
type lister struct {
	wrapper
	calls int
}

func (l *lister) List(context.Context, once.RecordQuery) (once.RecordPage, error) {
	l.calls++
	return once.RecordPage{}, nil
}

// TestEachCapabilityIsFoundThroughWrappers wraps a store that has them twice.
func TestEachCapabilityIsFoundThroughWrappers(t *testing.T) {
	full := memstore.New(nil)
	bare := struct{ once.Store }{full} // what is below it cannot be found
	found[once.Lister](t, "Lister", full, bare)
	found[once.TxStore[*memstore.Tx]](t, "TxStore", full, bare)
	found[store.Registry](t, "Registry", full, bare)
	found[store.Positions[*memstore.Tx]](t, "Positions", full, bare)
	found[store.Shelf](t, "Shelf", full, bare)
	found[store.TxShelf[*memstore.Tx]](t, "TxShelf", full, bare)
	found[store.Archivable](t, "Archivable", full, bare)
	found[store.Reopener](t, "Reopener", full, bare)
	found[store.Outbox[*memstore.Tx]](t, "Outbox", full, bare)
	found[store.Relayable](t, "Relayable", full, bare)
	found[store.Bell](t, "Bell", full, bare)
}

func found[Capability any](t *testing.T, name string, full, bare once.Store) {
	t.Helper()
	c, ok := once.As[Capability](wrapper{wrapper{full}})
	if !ok || any(c) != any(full) {
		t.Errorf("%s: %T, %v", name, c, ok)
	}
	if _, ok := once.As[Capability](wrapper{bare}); ok {
		t.Errorf("%s of a store that has none", name)
	}
	if _, ok := once.As[Capability](nil); ok {
		t.Errorf("%s of no store", name)
	}
}

func TestTheOutermostCapabilityIsFound(t *testing.T) {
	l := &lister{wrapper: wrapper{memstore.New(nil)}}
	found, ok := once.As[once.Lister](wrapper{l})
	if !ok {
		t.Fatal("not found")
	}
	if _, err := found.List(t.Context(), once.RecordQuery{}); err != nil || l.calls != 1 {
		t.Errorf("the wrapper saw %d calls, %v", l.calls, err)
	}
}
