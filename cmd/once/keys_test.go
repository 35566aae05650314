package main

import (
	"path/filepath"
	"testing"

	"github.com/effectively-once/once"
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
