package main

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Somebody else decides while the question is on the screen.
func TestDecisionIsAboutTheRecordThatWasShown(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	s := open(t, from).Store
	k := once.Key{Operation: "pay/charge", ID: "cut off"}
	shown, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if err := settle(t.Context(), s, shown, nil, "the other one was faster"); err != nil {
		t.Fatal(err)
	}
	if err := bring(t.Context(), s, k, once.Unknown); err != nil { // a new attempt, unknown again
		t.Fatal(err)
	}
	before, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []*once.Outcome{nil, {Omitted: true}} {
		if code := exitOf(t.Context(), settle(t.Context(), s, shown, out, "too late")); code != exitMoved {
			t.Errorf("a late decision ends with %d, not %d", code, exitMoved)
		}
		if now, err := s.Get(t.Context(), k); err != nil || now.Attempt != before.Attempt || now.Status != once.Unknown ||
			now.Reason != before.Reason {
			t.Errorf("a late decision has changed the record to %+v (%v)", now, err)
		}
	}
}

// Somebody else forgets the key, and the next call has run, while the question is on the screen.
func TestForgettingIsAboutTheRecordThatWasShown(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	s := open(t, from).Store
	k := once.Key{Operation: "pay", ID: "paid"}
	shown, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Reopen(t.Context(), s, shown, "the other one was faster"); err != nil {
		t.Fatal(err)
	}
	pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	if _, err := once.Do(t.Context(), s, pay.For("paid"), func(context.Context, once.Key) (string, error) { return "again", nil }); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t.Context(), store.Reopen(t.Context(), s, shown, "too late")); code != exitMoved {
		t.Errorf("a late decision ends with %d, not %d", code, exitMoved)
	}
	if now, err := s.Get(t.Context(), k); err != nil || now.Status != once.Done || now.Attempt != 2 || string(now.Outcome.Body) != `"again"` {
		t.Errorf("a late decision has changed the record to %+v (%v)", now, err)
	}
}
