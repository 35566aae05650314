//go:build go1.25

package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// told counts what an observer hears of.
type told struct{ events []string }

func (o *told) Begin(_ context.Context, verb string, _ once.Key) (context.Context, func(once.CallResult)) {
	o.events = append(o.events, verb)
	return nil, nil
}

func (o *told) Event(_ context.Context, e once.Event) { o.events = append(o.events, e.Name) }

func find(t *testing.T, s once.Store, op reconcile.Operation, id string) reconcile.Finding {
	t.Helper()
	rec, err := s.Get(t.Context(), once.Key{Operation: op.Name(), ID: id})
	if err != nil {
		t.Fatal(err)
	}
	rec.Key = once.Key{Operation: op.Name(), ID: id}
	return op.Find(t.Context(), s, rec)
}

// Find shows what Ask would do, changes nothing and tells nobody that it has. Settle
// does it, with a reason.
func TestFindChangesNothingUntilItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observer := new(told)
		s, b := memstore.New(&memstore.Options{Options: once.Options{Observer: observer}}), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup}
		crash(t, s, charge, "paid", "not paid")
		b.pay("paid")
		op := reconcile.Of(charge)
		observer.events = nil
		for id, want := range map[string]once.Status{"paid": once.Done, "not paid": once.Absent} {
			f := find(t, s, op, id)
			if f.Settlement.Status != want || f.Err != nil {
				t.Errorf("%s would become %v, %v", id, f.Settlement.Status, f.Err)
			}
			wantStatus(t, s, charge, id, once.Unknown)
			if len(observer.events) > 0 {
				t.Errorf("an observer was told of %v", observer.events)
			}
			if err := f.Settle(t.Context(), s, ""); !errors.Is(err, once.ErrInvalid) {
				t.Errorf("it is settled without a reason: %v", err)
			}
			if err := f.Settle(t.Context(), s, "as the bank says, ann"); err != nil {
				t.Error(err)
			}
			wantStatus(t, s, charge, id, want)
			if got := strings.Join(observer.events, " "); got != "decided" {
				t.Errorf("an observer was told of %q", got)
			}
			observer.events = nil
		}
		if rec, err := s.Get(t.Context(), once.Key{Operation: "charge", ID: "paid"}); err != nil || string(rec.Outcome.Body) != `"paid paid"` || rec.Reason != "as the bank says, ann" {
			t.Errorf("it is %+v, %v", rec, err)
		}
	})
}

// An answer is about the attempt that was asked about, and about the time when it
// was asked.
func TestAnAnswerIsNotSettledOnceItIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(nil), newBank()
		charge := &once.Operation[string]{Name: "charge", Lookup: b.lookup, KeyValidFor: time.Hour}
		crash(t, s, charge, "again", "late", "down")
		op := reconcile.Of(charge)
		if !op.Asks(once.Key{Operation: "pay/charge", ID: "1"}) || op.Asks(once.Key{Operation: "charge/pay", ID: "1"}) {
			t.Error("it asks about other keys than its own")
		}
		again, late := find(t, s, op, "again"), find(t, s, op, "late")
		crash(t, s, charge, "again") // its second attempt, which the answer is not about
		if err := again.Settle(t.Context(), s, "x"); !errors.Is(err, once.ErrLeaseLost) {
			t.Errorf("the answer about the first attempt settles the second: %v", err)
		}
		time.Sleep(time.Hour + time.Second)
		if err := late.Settle(t.Context(), s, "x"); !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("a key that the bank has forgotten is freed: %v", err)
		}
		wantStatus(t, s, charge, "again", once.Unknown)
		wantStatus(t, s, charge, "late", once.Unknown)
		b.ask = func(string) error { return errBoom }
		if f := find(t, s, op, "down"); f.Settlement.Status != once.Unknown || !errors.Is(f.Err, errBoom) || f.Settle(t.Context(), s, "x") == nil {
			t.Errorf("without an answer it is found to be %+v", f)
		}
	})
}
