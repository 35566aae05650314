package cosmosstore_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cosmosstore"
)

func put(t *testing.T, s *cosmosstore.Store, ms ...store.Outgoing) {
	t.Helper()
	tx := s.Begin()
	tx.CreateItem(effect("row"))
	must(t, s.PutTx(t.Context(), tx, ms))
	must(t, tx.Commit(t.Context()))
}

func out(id string) store.Outgoing {
	return store.Outgoing{Message: broker.Message{ID: id, Topic: "t", OrderingKey: "k", Body: []byte("\xff")}}
}

func pending(t *testing.T, s *cosmosstore.Store) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{})
	must(t, err)
	return ms
}

// The shelf keeps messages for another attempt, or for a person.
func TestShelf(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	m := store.Shelved{Consumer: "c", Key: "1", State: store.Parked, Reason: "no such account", Message: out("1").Message}
	must(t, s.Shelve(t.Context(), []store.Shelved{m, m}))
	of := func(states ...store.ShelfState) []store.Shelved {
		t.Helper()
		all, err := cosmosstore.New(a.container("keys"), nil).Shelved(t.Context(), store.ShelfQuery{Consumer: "c", States: states})
		must(t, err)
		return all
	}
	all := of(store.Parked)
	if len(all) != 1 || string(all[0].Message.Body) != "\xff" || all[0].Reason != m.Reason {
		t.Fatalf("the shelf has %+v", all)
	}
	is := all[0]
	is.State, is.History = store.Discarded, "ana: gave it up"
	must(t, s.Change(t.Context(), is))
	if err := s.Change(t.Context(), is); !errors.Is(err, once.ErrLeaseLost) {
		t.Errorf("a change of an old version returned %v", err)
	}
	if left, gone := of(store.Parked), of(store.Discarded); len(left) != 0 || len(gone) != 1 {
		t.Errorf("%d messages are parked, and %d discarded", len(left), len(gone))
	}
	tx := s.Begin()
	tx.CreateItem(effect("row"))
	must(t, s.PutTx(t.Context(), tx, []store.Outgoing{out("2")}))
	must(t, tx.Commit(t.Context()))
	if all := of(); len(all) != 1 {
		t.Errorf("with a message in the outbox, the shelf has %d", len(all))
	}
}

// Messages go where the transaction is, which must be known.
func TestMessagesNeedThePartitionKey(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	_, err := s.Get(t.Context(), pay.For("1").Key())
	must(t, err)
	tx := s.Begin()
	if err := s.PutTx(t.Context(), tx, []store.Outgoing{out("1")}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("in an empty transaction, PutTx returned %v", err)
	}
	must(t, tx.Rollback())
	put(t, s, out("1"))
	if is := pending(t, s); len(is) != 1 || string(is[0].Message.Body) != "\xff" {
		t.Errorf("%d messages are pending: %v", len(is), is)
	}
}

// A move is made once and counts as made, whether the request or its reply is lost.
func TestAMoveWithoutAnAnswer(t *testing.T) {
	for _, fault := range []fakecosmos.Fault{fakecosmos.LoseRequest, fakecosmos.LoseReply, fakecosmos.Unavailable} {
		a := newAccount(t)
		s := a.store()
		put(t, s, out("1"))
		for _, move := range []func([]store.Outgoing) (int, error){
			func(ms []store.Outgoing) (int, error) { return s.MoveOutgoing(t.Context(), [16]byte{}, ms, store.Held) },
			func(ms []store.Outgoing) (int, error) { return s.Sent(t.Context(), [16]byte{}, ms, store.Delete) },
		} {
			var ms []store.Outgoing
			for _, state := range []store.OutgoingState{store.Pending, store.Held} {
				is, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: state})
				must(t, err)
				ms = append(ms, is...)
			}
			faults := 0
			a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
				if r.Kind == "Batch" && bytes.Contains(r.Body, []byte(`"Delete"`)) && faults == 0 {
					faults++
					return fault
				}
				return fakecosmos.None
			})
			n, err := move(ms)
			a.SetFault(nil)
			if n != 1 || err != nil || faults != 1 {
				t.Errorf("fault %v: the move of %d messages, with %d faults, returned %d, %v", fault, len(ms), faults, n, err)
			}
		}
		if n, err := s.Sent(t.Context(), [16]byte{}, []store.Outgoing{{Seq: 1}}, store.Delete); n != 0 || err != nil {
			t.Errorf("Sent of a message that is not there returned %d, %v", n, err)
		}
	}
}

// Pages are in order and complete when more messages wait than Queued holds at
// once, in partitions that the gateway does not order.
func TestPagesOfMessagesAreInOrder(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	const n, each = 2600, 40
	for i := 0; i < n; i += each {
		var ms []store.Outgoing
		for j := range each {
			m := out(fmt.Sprint(i + j))
			m.Message.OrderingKey = "k"
			ms = append(ms, m)
		}
		tx := s.Begin()
		tx.CreateItem(fmt.Appendf(nil, `{"id":"%d","customer":"c%d"}`, i, i%7))
		must(t, s.PutTx(t.Context(), tx, ms))
		must(t, tx.Commit(t.Context()))
	}
	for after, seen := int64(0), 0; seen < n; {
		page, err := s.Outgoing(t.Context(), store.OutgoingQuery{After: after, Limit: 500})
		must(t, err)
		if len(page) == 0 {
			t.Fatalf("after %d of %d messages there are none", seen, n)
		}
		for _, m := range page {
			if m.Message.ID != fmt.Sprint(seen) {
				t.Fatalf("message %d is %q", seen, m.Message.ID)
			}
			seen, after = seen+1, m.Seq
		}
	}
}

// A relay asks for all lanes at once. That does not take a query for each.
func TestALookAtAllLanesTakesFewQueries(t *testing.T) {
	a := newAccountOf(t, 1) // a query across partitions is a request for each
	s := a.store()
	relay := [16]byte{1}
	_, err := s.LeaseLanes(t.Context(), relay, time.Hour, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	must(t, err)
	var queries atomic.Int64
	a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		if r.Kind == "Query" {
			queries.Add(1)
		}
		return fakecosmos.None
	})
	look := func(want int, most int64) {
		t.Helper()
		queries.Store(0)
		if ms := pending(t, s); len(ms) != want {
			t.Errorf("%d messages are pending, want %d", len(ms), want)
		}
		if n := queries.Load(); n > most {
			t.Errorf("a look at %d messages made %d queries, want %d", want, n, most)
		}
		queries.Store(0)
		_, _, err := s.WakeDelayed(t.Context(), relay, store.Pending, 100)
		must(t, err)
		if n := queries.Load(); n > 8 {
			t.Errorf("a look for delayed messages made %d queries", n)
		}
	}
	a.SetDelay(50 * time.Millisecond) // so that calls which are made at once overlap
	look(0, 8)
	put(t, s, store.Outgoing{Message: broker.Message{ID: "1", Topic: "t"}})
	look(1, 12)
	look(1, 12)
	a.SetDelay(0)
	for range 21 { // now there are too many names to read all of them
		put(t, s, some(50)...)
	}
	for range 2 {
		ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{Limit: 2000})
		if must(t, err); len(ms) != 1051 {
			t.Errorf("%d of 1,051 messages are found", len(ms))
		}
	}
}

// some returns messages in several lanes.
func some(n int) (ms []store.Outgoing) {
	for range n {
		ms = append(ms, store.Outgoing{Message: broker.Message{ID: rand.Text(), Topic: "t"}})
	}
	return ms
}
