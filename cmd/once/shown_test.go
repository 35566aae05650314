package main

import (
	"path/filepath"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// While the question is on the screen, one message is decided about by somebody else, one is put aside again, and one
// is new: only the one that is as it was counted is changed.
func TestShelfIsChangedAsItWasCounted(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	s := need[store.Shelf](open(t, from))
	c := shelfChange{changeFlags: changeFlags{Reason: "r", By: "ana", Yes: true}}
	c.URL, c.Consumer = chosen(from), "billing"
	err := c.run(t.Context(), "discarded", inbox.Decision{}, func(d inbox.Admin, q store.ShelfQuery,
		by inbox.Decision) (inbox.Tally, error) {
		if !by.DryRun {
			ms, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: "billing"})
			if err != nil {
				t.Fatal(err)
			}
			ms[0].State = store.Waiting
			ms[1].Reason = "unknown outcome: not as it was"
			for _, m := range ms[:2] {
				if err := s.Change(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked,
				Message: broker.Message{ID: "m4", Topic: "orders"}}}); err != nil {
				t.Fatal(err)
			}
		}
		return d.Discard(t.Context(), q, by)
	})
	if code := exitOf(t.Context(), err); code != exitMoved {
		t.Errorf("exit status %d, want %d", code, exitMoved)
	}
	now, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	want := []store.ShelfState{store.Waiting, store.Parked, store.Discarded, store.Parked}
	for i, m := range now {
		if m.State != want[i] {
			t.Errorf("%s is %v, want %v", m.Message.ID, m.State, want[i])
		}
	}
}

// The same of the outbox: one is held by now, and another is stuck that was not.
func TestOutboxIsChangedAsItWasCounted(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	s := need[store.Relayable](open(t, from))
	in := func(state store.OutgoingState) []store.Outgoing {
		ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: state})
		if err != nil {
			t.Fatal(err)
		}
		return ms
	}
	move := func(m store.Outgoing, to store.OutgoingState) {
		if n, err := s.MoveOutgoing(t.Context(), [16]byte{}, []store.Outgoing{m}, to); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	c := outboxChange{changeFlags: changeFlags{Reason: "r", By: "ana", Yes: true}, All: true}
	c.URL = chosen(from)
	err := c.run(t.Context(), "discarded", store.OutgoingQuery{State: store.Stuck}, func(d outbox.Admin,
		q store.OutgoingQuery, by outbox.Decision) (outbox.Tally, error) {
		if !by.DryRun {
			move(in(store.Stuck)[0], store.Held)
			move(in(store.Pending)[0], store.Stuck)
		}
		return d.Discard(t.Context(), q, by)
	})
	if code := exitOf(t.Context(), err); code != exitMoved {
		t.Errorf("exit status %d, want %d", code, exitMoved)
	}
	if stuck, held := in(store.Stuck), in(store.Held); len(stuck) != 1 || stuck[0].Message.ID != "o3" ||
		len(held) != 1 || held[0].Message.ID != "o1" {
		t.Errorf("stuck are %v, held %v: want o3 and o1", stuck, held)
	}
}
