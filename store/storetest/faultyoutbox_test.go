package storetest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// faultless is a store whose outbox is wrapped.
type faultless struct {
	once.TxStore[*memstore.Tx]
	*storetest.FaultyOutboxStore[*memstore.Tx]
	store.Shelf // to which HandOver moves messages
}

func TestFaultyOutboxWithoutFaults(t *testing.T) {
	s, n := memstore.New(nil), newNotes()
	none := func(storetest.Call) storetest.Fault { return storetest.Fault{} }
	h := inMemory(s, n, func() once.TxStore[*memstore.Tx] { return faultless{s, storetest.FaultyOutbox(s, none), s} })
	ran := 0
	for _, c := range storetest.TxCases(t, h) {
		if !strings.HasPrefix(c.Name, "outbox/") {
			continue
		}
		ran++
		if err := c.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if ran < 40 {
		t.Errorf("only %d cases ran", ran)
	}
}

func putOne(t *testing.T, s *memstore.Store, id string) store.Outgoing {
	t.Helper()
	tx, m := s.Begin(), broker.Message{ID: id, Topic: "topic", Body: []byte("body")}
	if err := errors.Join(s.PutTx(background, tx, []store.Outgoing{{Message: m}}), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	return wantPending(t, s, id)[0]
}

func wantPending(t *testing.T, s *memstore.Store, want ...string) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(background, store.OutgoingQuery{})
	var got []string
	for _, m := range ms {
		got = append(got, m.Message.ID)
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%q are pending (%v), want %q", got, err, want)
	}
	return ms
}

// The plan gets each call with the name of its method and its number. A lost
// request does not reach the store.
func TestOutboxCallsArePlannedByName(t *testing.T) {
	var calls []string
	s := memstore.New(nil)
	m := putOne(t, s, "1")
	f := storetest.FaultyOutbox(s, func(c storetest.Call) storetest.Fault {
		calls = append(calls, fmt.Sprint(c.Method, " ", c.N))
		return storetest.Fault{Request: errLost, Late: make(chan struct{})}
	})
	bell, ok := once.As[store.Bell](f)
	if !ok {
		t.Fatal("no bell")
	}
	relay, ms, tx := [16]byte{}, []store.Outgoing{m}, s.Begin()
	for _, call := range []func() error{
		func() error { return f.PutTx(background, tx, ms) },
		func() error { _, err := f.LeaseLanes(background, [16]byte{1}, time.Hour, nil); return err },
		func() error { return f.ReleaseLanes(background, relay, nil) },
		func() error { _, err := f.Outgoing(background, store.OutgoingQuery{}); return err },
		func() error { _, err := f.Sent(background, relay, ms, store.Delete); return err },
		func() error { _, err := f.MoveOutgoing(background, relay, ms, store.Held); return err },
		func() error { _, _, err := f.WakeDelayed(background, relay, store.Held, 1); return err },
		func() error { _, err := f.RemoveOutgoing(background, relay, ms); return err },
		func() error { _, err := f.ForgetOutgoing(background, 0, 1); return err },
		func() error { _, err := f.OutboxDepth(background, 1); return err },
		func() error { _, err := f.DecidedOutgoing(background, false); return err },
		func() error { _, err := bell.HearOutbox(background); return err },
		func() error { _, err := f.Sent(background, relay, ms, store.Delete); return err },
	} {
		wantError(t, call(), errLost)
	}
	want := "[PutTx 1 LeaseLanes 1 ReleaseLanes 1 Outgoing 1 Sent 1 MoveOutgoing 1 WakeDelayed 1 RemoveOutgoing 1 " +
		"ForgetOutgoing 1 OutboxDepth 1 DecidedOutgoing 1 HearOutbox 1 Sent 2]"
	if got := fmt.Sprint(calls); got != want {
		t.Errorf("planned %s\nwant    %s", got, want)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wantPending(t, s, "1")
}

func TestReplyToSentIsLost(t *testing.T) {
	s := memstore.New(nil)
	m := putOne(t, s, "1")
	f := storetest.FaultyOutbox(s, storetest.On("Sent", 1, storetest.Fault{Reply: errLost}))
	n, err := f.Sent(background, [16]byte{}, []store.Outgoing{m}, store.Delete)
	if wantError(t, err, errLost); n != 0 {
		t.Errorf("a reply that was lost says that %d rows were changed", n)
	}
	wantPending(t, s)
}

func TestLateSent(t *testing.T) {
	s, late := memstore.New(nil), make(chan struct{})
	ms := []store.Outgoing{putOne(t, s, "1")}
	f := storetest.FaultyOutbox(s, storetest.On("Sent", 1, storetest.Fault{Late: late}))
	_, err := f.Sent(background, [16]byte{}, ms, store.Delete)
	wantError(t, err, once.ErrOutcomeUnknown)
	clear(ms) // it belongs to the caller again
	wantPending(t, s, "1")
	close(late)
	f.Wait()
	wantPending(t, s)
}

func TestFaultyOutboxHasNoBellIfItsStoreHasNone(t *testing.T) {
	mute := struct{ store.Outbox[*memstore.Tx] }{memstore.New(nil)}
	f := storetest.FaultyOutbox[*memstore.Tx](mute, storetest.On("", 0, storetest.Fault{}))
	if _, ok := once.As[store.Bell](f); ok {
		t.Error("it has one")
	}
}
