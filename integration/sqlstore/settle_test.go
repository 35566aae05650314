package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/sqlstore"
)

// The UPDATE of an Extend comes before the commit of its claim, and its SELECT
// after it. If Extend returns nil, it has extended the lease.
func TestExtendThatFoundNothingHasExtended(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t, quickSettings(e)...)
		claimed := 0
		late := sqlstore.New(hooked(t, db, func(_ context.Context, query string) func() {
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

// The same race with Settle: after the lease has lapsed, the row reads as if
// the attempt had been settled as unknown.
func TestSettlementThatFoundNothingIsApplied(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t, quickSettings(e)...)
		claimed := 0
		late := sqlstore.New(hooked(t, db, func(_ context.Context, query string) func() {
			if claimed > 0 || !strings.Contains(query, "UPDATE") {
				return func() {}
			}
			claimed++
			return func() {
				brief := request("late", "a")
				brief.Lease = time.Microsecond
				_, err := s.Claim(t.Context(), brief)
				must(t, err)
				proof.Await(t, "the lease has lapsed", func() bool {
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

// quickSettings send every statement to the driver in one call.
func quickSettings(e engine) []string {
	if e.dialect == sqlstore.MySQL {
		return []string{"interpolateParams=true"}
	}
	return nil
}
