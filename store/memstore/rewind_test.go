package memstore_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/rewind"
	"github.com/effectively-once/once/store/memstore"
)

// A transaction begins, the store is taken back, and the transaction claims a key and
// is rolled back. Nobody has the key.
func TestATransactionThatWasOpenAtARewindLeavesNoLock(t *testing.T) {
	s := memstore.New(nil)
	restore := rewind.Save(s)
	tx := s.Begin()
	restore()
	k := once.Key{Operation: "pay", ID: "1"}
	if _, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{2}}, Lease: time.Minute})
	if err != nil || rec.Owner != [16]byte{2} {
		t.Errorf("after the rollback, a claim returned %v of owner %v, %v", rec.Status, rec.Owner, err)
	}
}
