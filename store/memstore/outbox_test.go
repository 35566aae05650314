package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func outgoing(id string) []store.Outgoing {
	return []store.Outgoing{{Message: broker.Message{ID: id, Topic: "topic"}}}
}

func put(t *testing.T, s *memstore.Store, ms ...store.Outgoing) {
	t.Helper()
	tx := s.Begin()
	if err := errors.Join(s.PutTx(ctx, tx, ms), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

func wantOutgoing(t *testing.T, s *memstore.Store, state store.OutgoingState, want ...string) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: state})
	var got []string
	for _, m := range ms {
		got = append(got, m.Message.ID)
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%q are %v (%v), want %q", got, state, err, want)
	}
	return ms
}

func TestOutboxRefusesAnEndedTransaction(t *testing.T) {
	s := memstore.New(nil)
	ended, foreign := s.Begin(), memstore.New(nil).Begin()
	ended.Rollback()
	for name, tx := range map[string]*memstore.Tx{"ended": ended, "foreign": foreign, "nil": nil} {
		if err := s.PutTx(ctx, tx, outgoing("1")); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("PutTx in a transaction that is %s: %v", name, err)
		}
	}
	if err := foreign.Commit(); err != nil {
		t.Error(err)
	}
	wantOutgoing(t, s, store.Pending)
}

func TestOutboxRefusesNonsense(t *testing.T) {
	s, relay, people := memstore.New(nil), [16]byte{1}, [16]byte{}
	put(t, s, outgoing("1")...)
	ms := wantOutgoing(t, s, store.Pending, "1")
	long := ms[0]
	long.Reason = strings.Repeat("x", 64<<10+1)
	move := func(to store.OutgoingState, ms ...store.Outgoing) error {
		_, err := s.MoveOutgoing(ctx, people, ms, to)
		return err
	}
	none := []int{16}
	for name, call := range map[string]func() error{
		"a lease of lane 16":    func() error { _, err := s.LeaseLanes(ctx, relay, time.Hour, none); return err },
		"a release of lane -1":  func() error { return s.ReleaseLanes(ctx, relay, []int{-1}) },
		"a query for lane 16":   func() error { _, err := s.Outgoing(ctx, store.OutgoingQuery{Lanes: none}); return err },
		"a lease for nobody":    func() error { _, err := s.LeaseLanes(ctx, people, time.Hour, nil); return err },
		"no such ending":        func() error { _, err := s.Sent(ctx, people, ms, store.Archive+1); return err },
		"a move to no state":    func() error { return move(store.Published+1, ms...) },
		"a wake to no state":    func() error { _, _, err := s.WakeDelayed(ctx, relay, -1, 1); return err },
		"a reason that is long": func() error { return move(store.Held, long) },
	} {
		if err := call(); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, lane := range []int{-1, 16} {
		nowhere := ms[0]
		nowhere.Lane = lane
		if n, err := s.RemoveOutgoing(ctx, people, []store.Outgoing{nowhere}); n != 0 || err != nil {
			t.Errorf("removing a message in lane %d: %d, %v", lane, n, err)
		}
	}
	wantOutgoing(t, s, store.Pending, "1")
}

// A message gets its Seq when it is put, so one that commits late may come
// before those that were already read.
func TestLateCommitsComeBefore(t *testing.T) {
	s := memstore.New(nil)
	keyed := func(id string) []store.Outgoing {
		ms := outgoing(id)
		ms[0].Message.OrderingKey = "key"
		return ms
	}
	first, second, third := s.Begin(), s.Begin(), s.Begin()
	for i, tx := range []*memstore.Tx{first, second, third} {
		if err := s.PutTx(ctx, tx, keyed(fmt.Sprint(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	for _, tx := range []*memstore.Tx{third, first, second} {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	lane := wantOutgoing(t, s, store.Pending, "1", "2", "3")[0].Lane
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{Lanes: []int{lane}})
	if err != nil || len(ms) != 3 || ms[0].Seq > ms[1].Seq || ms[1].Seq > ms[2].Seq {
		t.Errorf("the lane has %+v, %v", ms, err)
	}
}

func TestAClosedStoreHasNoOutbox(t *testing.T) {
	s := memstore.New(nil)
	waiting, other := hear(t, s), hear(t, s)
	tx := s.Begin()
	if err := s.PutTx(ctx, tx, outgoing("1")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- waiting.Wait(ctx) }()
	s.Close()
	other.Close()
	relay := [16]byte{1}
	for name, call := range map[string]func() error{
		"Wait":                 func() error { return <-ended },
		"Wait after the end":   func() error { return waiting.Wait(ctx) },
		"Wait after its Close": func() error { return other.Wait(ctx) },
		"HearOutbox":           func() error { _, err := s.HearOutbox(ctx); return err },
		"PutTx":                func() error { return s.PutTx(ctx, s.Begin(), outgoing("1")) },
		"Commit":               tx.Commit,
		"LeaseLanes":           func() error { _, err := s.LeaseLanes(ctx, relay, time.Hour, nil); return err },
		"ReleaseLanes":         func() error { return s.ReleaseLanes(ctx, relay, nil) },
		"Outgoing":             func() error { _, err := s.Outgoing(ctx, store.OutgoingQuery{}); return err },
		"Sent":                 func() error { _, err := s.Sent(ctx, relay, nil, store.Delete); return err },
		"MoveOutgoing":         func() error { _, err := s.MoveOutgoing(ctx, relay, nil, store.Held); return err },
		"WakeDelayed":          func() error { _, _, err := s.WakeDelayed(ctx, relay, store.Held, 1); return err },
		"RemoveOutgoing":       func() error { _, err := s.RemoveOutgoing(ctx, relay, nil); return err },
		"ForgetOutgoing":       func() error { _, err := s.ForgetOutgoing(ctx, 0, 1); return err },
		"OutboxDepth":          func() error { _, err := s.OutboxDepth(ctx, 1); return err },
	} {
		if err := call(); !errors.Is(err, once.ErrClosed) {
			t.Errorf("%s of a closed store: %v", name, err)
		}
	}
}

func hear(t *testing.T, s *memstore.Store) store.Ear {
	t.Helper()
	e, err := s.HearOutbox(ctx)
	if err != nil || !e.Far() {
		t.Fatal(e, err)
	}
	return e
}

// Only a commit with messages rings.
func TestOnlyAPutRings(t *testing.T) {
	s := memstore.New(nil)
	e := hear(t, s)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	tx, rolledBack, nothing := s.Begin(), s.Begin(), s.Begin()
	tx.Set("row", "1")
	for _, err := range []error{tx.Commit(), s.PutTx(ctx, rolledBack, outgoing("1")), s.PutTx(ctx, nothing, nil),
		nothing.Commit()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rolledBack.Rollback()
	for range 20 { // which of two it takes would be chance
		if err := e.Wait(ended); !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait when nothing was put: %v", err)
		}
	}
	put(t, s, outgoing("1")...)
	put(t, s, outgoing("2")...)
	if err := e.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a second Wait, and nothing was put since the first: %v", err)
	}
	e.Close()
	if err := e.Wait(ctx); !errors.Is(err, once.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}
