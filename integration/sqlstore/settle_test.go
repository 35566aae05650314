package sqlstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

// TestExtendThatFoundNothingHasExtended checks the answer of an Extend whose UPDATE came before the claim that it is
// about was committed, and who looks at the row after that. An Extend that returns nil has extended.
func TestExtendThatFoundNothingHasExtended(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t, quickSettings(e)...)
		claimed := 0
		late := sqlstore.New(hooked(t, db, func(query string) func() {
			if claimed > 0 || !strings.HasPrefix(query, "UPDATE") {
				return func() {}
			}
			claimed++
			return func() {
				_, err := s.Claim(t.Context(), request("late", "a")) // for an hour
				must(t, err)
			}
		}), e.dialect, nil)
		err := late.Extend(t.Context(), once.Fence{Key: key("late"), Owner: token("a"), Attempt: 1}, time.Minute)
		if err != nil && !errors.Is(err, once.ErrLeaseLost) {
			t.Fatal(err)
		}
		rec, got := s.Get(t.Context(), key("late"))
		if must(t, got); rec.Status != once.Running || claimed != 1 {
			t.Fatalf("the claim was not made between the statements: %+v", rec)
		}
		if extended := rec.LeaseLeft <= time.Minute; extended != (err == nil) {
			t.Errorf("Extend by a minute returned %v, and the lease ends after %v", err, rec.LeaseLeft)
		}
	})
}

// TestSettlementThatFoundNothingIsApplied is the same for Settle: a lease that has lapsed reads as if the attempt had
// been settled as unknown.
func TestSettlementThatFoundNothingIsApplied(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t, quickSettings(e)...)
		claimed := 0
		late := sqlstore.New(hooked(t, db, func(query string) func() {
			if claimed > 0 || !strings.Contains(query, "UPDATE") {
				return func() {}
			}
			claimed++
			return func() {
				brief := request("late", "a")
				brief.Lease = time.Microsecond
				_, err := s.Claim(t.Context(), brief)
				must(t, err)
				until(t, "the lease has lapsed", func() bool {
					rec, err := s.Get(t.Context(), key("late"))
					return err == nil && rec.Status == once.Unknown
				})
			}
		}), e.dialect, nil)
		set := once.Settlement{Fence: once.Fence{Key: key("late"), Owner: token("a"), Attempt: 1}, Status: once.Unknown, Reason: "no reply"}
		err := late.Settle(t.Context(), set)
		if err != nil && !errors.Is(err, once.ErrLeaseLost) {
			t.Fatal(err)
		}
		rec, got := s.Get(t.Context(), key("late"))
		if must(t, got); rec.Attempt != 1 || claimed != 1 {
			t.Fatalf("the claim was not made between the statements: %+v", rec)
		}
		if settled := rec.Reason == set.Reason; settled != (err == nil) {
			t.Errorf("Settle returned %v, and the record is %+v", err, rec)
		}
	})
}

// quickSettings are such that every statement reaches the driver in one piece.
func quickSettings(e engine) []string {
	if e.dialect == sqlstore.MySQL {
		return []string{"interpolateParams=true"}
	}
	return nil
}
