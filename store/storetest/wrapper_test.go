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

func TestEachCapabilityIsFoundThroughWrappers(t *testing.T) {
	full := memstore.New(nil)
	bare := struct{ once.Store }{full} // hides the capabilities of full
	found[once.Lister](t, "Lister", full, bare)
	found[once.TxStore[*memstore.Tx]](t, "TxStore", full, bare)
	found[store.Registry](t, "Registry", full, bare)
	found[store.RegistryEditor](t, "RegistryEditor", full, bare)
	found[store.Positions[*memstore.Tx]](t, "Positions", full, bare)
	found[store.Shelf](t, "Shelf", full, bare)
	found[store.TxShelf[*memstore.Tx]](t, "TxShelf", full, bare)
	found[store.Archivable](t, "Archivable", full, bare)
	found[store.Reopener](t, "Reopener", full, bare)
	found[store.Outbox[*memstore.Tx]](t, "Outbox", full, bare)
	found[store.Relayable](t, "Relayable", full, bare)
	found[store.HandOver](t, "HandOver", full, bare)
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

// counter counts the calls of List. It wraps only stores that are listers.
type counter struct {
	wrapper
	calls int
}

func (c *counter) List(context.Context, once.RecordQuery) (once.RecordPage, error) {
	c.calls++
	return once.RecordPage{}, nil
}

func TestTheOutermostCapabilityIsFound(t *testing.T) {
	c := &counter{wrapper: wrapper{memstore.New(nil)}}
	found, ok := once.As[once.Lister](wrapper{c})
	if !ok {
		t.Fatal("not found")
	}
	if _, err := found.List(t.Context(), once.RecordQuery{}); err != nil || c.calls != 1 {
		t.Errorf("the wrapper saw %d calls, %v", c.calls, err)
	}
}

// choosing counts the calls of List, if its store is a lister.
type choosing struct {
	wrapper
	calls int
}

func (c *choosing) As(target any) bool {
	l, isLister := target.(*once.Lister)
	if !isLister {
		return false
	}
	inner, ok := once.As[once.Lister](c.Store)
	*l = &countedLister{inner, &c.calls}
	return ok
}

type countedLister struct {
	once.Lister
	calls *int
}

func (c *countedLister) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	*c.calls++
	return c.Lister.List(ctx, q)
}

func TestAsOfAWrapperDecides(t *testing.T) {
	full := memstore.New(nil)
	c := &choosing{wrapper: wrapper{full}}
	l, ok := once.As[once.Lister](wrapper{c})
	if !ok {
		t.Fatal("not found")
	}
	if _, err := l.List(t.Context(), once.RecordQuery{}); err != nil || c.calls != 1 {
		t.Errorf("the wrapper saw %d calls, %v", c.calls, err)
	}
	if shelf, ok := once.As[store.Shelf](c); !ok || shelf != store.Shelf(full) {
		t.Errorf("of another capability it found %T, %v", shelf, ok)
	}
	if l, ok := once.As[once.Lister](&choosing{wrapper: wrapper{struct{ once.Store }{full}}}); ok || l != nil {
		t.Errorf("a store that cannot list has the lister %T", l)
	}
}
