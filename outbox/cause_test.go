package outbox_test

import (
	"context"
	"maps"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A message that a unit of work puts names its key: readable in the row,
// one-way in the message. The innermost key counts. A cause that the message
// already has is replaced.
func TestMessagesNameTheirCause(t *testing.T) {
	s := memstore.New(nil)
	out := outbox.New(s, nil)
	outer := (&once.Operation[int]{Name: "checkout"}).For("cart-1")
	pay := (&once.Operation[int]{Name: "pay"}).For("order-1").In("tenant-7")
	forwarded := map[string]string{"a": "b", outbox.KeyHeader: "another's"}
	put := func(ctx context.Context, tx *memstore.Tx, id string, header map[string]string) error {
		return out.Put(ctx, tx, &broker.Message{ID: id, Topic: "t", Header: header})
	}
	_, err := once.DoTx(t.Context(), s, outer, func(ctx context.Context, tx *memstore.Tx) (int, error) {
		if err := put(ctx, tx, "outer", nil); err != nil {
			return 0, err
		}
		_, err := once.InTx(ctx, s, tx, pay, func(ctx context.Context) (int, error) { return 0, put(ctx, tx, "inner", forwarded) })
		if err != nil {
			return 0, err
		}
		return 0, put(ctx, tx, "outer again", forwarded)
	})
	if err != nil {
		t.Fatal(err)
	}
	tx := s.Begin()
	if err := put(t.Context(), tx, "nobody's", forwarded); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{})
	if err != nil || len(ms) != 4 {
		t.Fatalf("got %v, %v", ms, err)
	}
	want := map[string]once.Key{"outer": outer.Key(), "inner": pay.Key(), "outer again": outer.Key(), "nobody's": {}}
	for _, m := range ms {
		key, known := store.ParseCause(m.Cause)
		if key != want[m.Message.ID] || known != (key != once.Key{}) {
			t.Errorf("%s was put by %v, and the outbox says %q", m.Message.ID, want[m.Message.ID], m.Cause)
		}
		travels := ""
		if known {
			travels = key.String()
		}
		if got := m.Message.Header[outbox.KeyHeader]; got != travels {
			t.Errorf("%s travels with the key %q, want %q", m.Message.ID, got, travels)
		}
	}
	if !maps.Equal(forwarded, map[string]string{"a": "b", outbox.KeyHeader: "another's"}) {
		t.Error("a header of the caller's was changed")
	}
	found, err := s.Outgoing(t.Context(), store.OutgoingQuery{Cause: store.FormatCause(pay.Key())})
	if err != nil || len(found) != 1 || found[0].Message.ID != "inner" {
		t.Errorf("the key has put %v, %v", found, err)
	}
}

func TestCausesThatOthersWrite(t *testing.T) {
	for text, want := range map[string]once.Key{
		`["tenant","pay","1"]`:    {Scope: "tenant", Operation: "pay", ID: "1"},
		`[ "", "pay", "\u0031" ]`: {Operation: "pay", ID: "1"},
		``:                        {}, `pay`: {}, `["pay","1"]`: {}, `["","",""]`: {}, `["","pay","a\u0007"]`: {}, `[1,2,3]`: {},
	} {
		got, ok := store.ParseCause(text)
		if ok != (want != once.Key{}) || ok && got != want {
			t.Errorf("%q is read as %v, %v", text, got, ok)
		}
	}
}
