package once_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// silent is a store whose Get returns only when its context ends.
type silent struct{ *hooks }

func (s silent) Get(ctx context.Context, _ once.Key) (once.Record, error) {
	<-ctx.Done()
	return once.Record{}, ctx.Err()
}

func TestWaitIsKeptOnAStoreThatDoesNotAnswer(t *testing.T) {
	_, ps := processes(2)
	brief := &once.Operation[string]{Name: "brief", OnUnknown: once.Park, Policy: once.Policy{Wait: 10 * time.Millisecond}}
	_, err := once.Do(testCtx, ps[0], brief.For("1"), func(context.Context, once.Key) (string, error) {
		begun := time.Now()
		_, err := once.Do(testCtx, silent{ps[1]}, brief.For("1").Redelivered(), never[string](t))
		wantErr(t, err, once.ErrInProgress)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("waited for %v", took)
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// slowClaim returns when the lease has lapsed.
func (h *hooks) slowClaim(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
	rec, err := claim(ctx, r)
	for seen := rec; err == nil && seen.Status == once.Running; runtime.Gosched() {
		seen, err = h.Store.Get(ctx, r.Key)
	}
	return rec, err
}

// Claims that lapsed before their reply arrived were never used, so none of
// them may be parked later.
func TestClaimsTooSlowToBeUsedAreGivenBack(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.claim = s.slowClaim
	op := &once.Operation[string]{Name: "slow", OnUnknown: once.Park, Policy: once.Policy{Lease: 20 * time.Millisecond}}
	if _, err := once.Do(testCtx, s, op.For("1"), never[string](t)); err == nil {
		t.Error("no error")
	}
	wantStatus(t, s, op.For("1").Key(), once.Absent)
}

func TestAskRefusesTheRecordOfAnotherOperation(t *testing.T) {
	s := memstore.New(nil)
	mail := &once.Operation[string]{Name: "mail", Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
	for _, key := range []once.Key{{Operation: "charge", ID: "1"}, {Operation: "order/charge", ID: "1"}, {Operation: "email", ID: "1"}} {
		rec := crashed(t, s, key)
		_, err := mail.Ask(testCtx, s, rec)
		wantErr(t, err, once.ErrInvalid)
		wantStatus(t, s, key, once.Unknown)
	}
	rec := crashed(t, s, once.Key{Operation: "order/mail", ID: "1"})
	if now, err := mail.Ask(testCtx, s, rec); err != nil || now.Status != once.Absent {
		t.Errorf("%v, %v", now.Status, err)
	}
}
