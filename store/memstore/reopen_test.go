package memstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// The store takes the second of two people who reopen a record for a repetition of
// the first.
func TestOnlyTheFirstOfTwoPeopleReopensARecord(t *testing.T) {
	s, k := memstore.New(nil), once.Key{Operation: "pay", ID: "1"}
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	set := once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}
	set.Outcome, _ = s.Options().Pack(k, nil, once.Outcome{Omitted: true})
	if err := s.Settle(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if rec, err = s.Get(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if err := store.Reopen(t.Context(), s, rec, "by ann: wrong card"); err != nil {
		t.Fatal(err)
	}
	if err := store.Reopen(t.Context(), s, rec, "by bob: wrong card"); !errors.Is(err, once.ErrLeaseLost) {
		t.Errorf("the second: %v", err)
	}
	if err := store.Reopen(t.Context(), s, rec, "by ann: wrong card"); err != nil {
		t.Errorf("repeated by who was first: %v", err)
	}
}
