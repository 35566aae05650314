package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// claim takes a key in s, for a message that the work of cause has put.
func claim(t *testing.T, s once.Store, k once.Key, cause [16]byte) once.Record {
	t.Helper()
	owner := [16]byte(k.UUID())
	r, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: owner}, Lease: time.Minute, Cause: cause})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTracesAreFound(t *testing.T) {
	s := memstore.New(nil)
	order := once.Key{Operation: "order", ID: "1"}
	claim(t, s, order, [16]byte{})
	invoice := once.Key{Operation: "billing", ID: "m-1"}
	effect := claim(t, s, invoice, order.UUID())
	for i := range 1100 { // more than a page of the store looks at
		claim(t, s, once.Key{Operation: "other", ID: fmt.Sprint(i)}, [16]byte{})
	}

	found, err := store.FindTraces(t.Context(), s, once.Record{Key: order}, 10)
	if err != nil || len(found.LedTo) != 1 || found.LedTo[0].Key != invoice || found.Cause != (once.Key{}) || found.Cut {
		t.Errorf("of the order: %+v, %v", found, err)
	}
	found, err = store.FindTraces(t.Context(), s, effect, 10)
	if err != nil || found.Cause != order || len(found.LedTo) != 0 {
		t.Errorf("of the invoice: %+v, %v", found, err)
	}
	if k, err := store.FindKey(t.Context(), s, once.Key{Operation: "never", ID: "1"}.UUID()); err != nil || k != (once.Key{}) {
		t.Errorf("of no key: %v, %v", k, err)
	}

	claim(t, s, once.Key{Operation: "mail", ID: "m-1"}, order.UUID())
	if found, err = store.FindTraces(t.Context(), s, once.Record{Key: order}, 1); err != nil || len(found.LedTo) != 1 || !found.Cut {
		t.Errorf("with a limit: %+v, %v", found, err)
	}
}

// openOnly lists open records only.
type openOnly struct{ *memstore.Store }

func (s openOnly) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if len(q.Status) == 0 && q.UUID == [16]byte{} {
		return once.RecordPage{}, once.ErrInvalid
	}
	return s.Store.List(ctx, q)
}

func TestTracesInAStoreThatListsOpenRecords(t *testing.T) {
	s := openOnly{memstore.New(nil)}
	order := once.Key{Operation: "order", ID: "1"}
	claim(t, s, once.Key{Operation: "billing", ID: "m-1"}, order.UUID())
	if found, err := store.FindTraces(t.Context(), s, once.Record{Key: order}, 10); err != nil || len(found.LedTo) != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
}

// plain hides the capabilities of a store.
type plain struct{ once.Store }

func TestTracesNeedALister(t *testing.T) {
	if _, err := store.FindTraces(t.Context(), plain{memstore.New(nil)}, once.Record{Key: once.Key{Operation: "a", ID: "1"}}, 10); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
