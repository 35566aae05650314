package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/memstore"
)

// slowClaims is a store whose replies to claims take a while.
type slowClaims struct {
	once.Store
	take time.Duration
}

func (s *slowClaims) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	defer time.Sleep(s.take)
	return s.Store.Claim(ctx, r)
}

// The other system honours a key for an hour. An answer of Lookup, or the claim of
// the next attempt, that takes until after that comes too late.
func TestNothingIsSentOnceTheKeyMayBeForgotten(t *testing.T) {
	lookup := func(takes time.Duration) func(context.Context, once.Key) (string, bool, error) {
		return func(context.Context, once.Key) (string, bool, error) {
			time.Sleep(takes)
			return "", false, nil
		}
	}
	for name, c := range map[string]struct {
		op    once.Operation[string]
		left  time.Duration // of the hour
		claim time.Duration
		runs  int
	}{
		"a quick Lookup":               {once.Operation[string]{Lookup: lookup(time.Second)}, time.Minute, 0, 2},
		"a slow Lookup":                {once.Operation[string]{Lookup: lookup(2 * time.Minute)}, time.Minute, 0, 1},
		"a quick claim":                {once.Operation[string]{OnUnknown: once.Resend}, 20 * time.Second, 4 * time.Second, 2},
		"a slow claim":                 {once.Operation[string]{OnUnknown: once.Resend}, 6 * time.Second, 4 * time.Second, 1},
		"a claim before a Lookup":      {once.Operation[string]{Lookup: lookup(time.Second)}, 20 * time.Second, 4 * time.Second, 2},
		"a slow claim before a Lookup": {once.Operation[string]{Lookup: lookup(time.Second)}, 4 * time.Second, 4 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			faketime.Long(t, func(t *testing.T) {
				c.op.Name, c.op.KeyValidFor = "charge", time.Hour
				s, runs := &slowClaims{Store: memstore.New(nil)}, 0
				work := func(context.Context, once.Key) (string, error) {
					runs++
					return "paid", errors.New("cut off")
				}
				if _, err := once.Do(t.Context(), s, c.op.For("1"), work); !errors.Is(err, once.ErrOutcomeUnknown) {
					t.Fatalf("Do returned %v", err)
				}
				time.Sleep(time.Hour - c.left)
				s.take = c.claim
				_, err := once.Do(t.Context(), s, c.op.For("1"), work)
				if runs != c.runs || c.runs == 1 && !errors.Is(err, once.ErrParked) {
					t.Errorf("Do returned %v after %d runs, want %d", err, runs, c.runs)
				}
				rec, err := s.Get(t.Context(), c.op.For("1").Key())
				if want := []once.Status{once.Parked, once.Unknown}[c.runs-1]; err != nil || rec.Status != want {
					t.Errorf("the record is %v, %v, want %v", rec.Status, err, want)
				}
			})
		})
	}
}

// The reply to the first claim of a call is lost, the key is another call's, which
// crashes. 30 seconds later this call takes over. The other system honours the key
// for 50 seconds, and it is 30 seconds old.
func TestAKeyIsNoOlderForAReplyThatWasLostLongBefore(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		op := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: 50 * time.Second,
			Policy: once.Policy{Lease: 30 * time.Second, Wait: 45 * time.Second}}
		s := &hooks{Store: memstore.New(nil)}
		began := time.Now()
		if _, err := s.Store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: op.For("1").Key(), Owner: name.Token()}, Lease: 30 * time.Second}); err != nil {
			t.Fatal(err)
		}
		lost := false
		s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			rec, err := claim(ctx, r)
			if !lost {
				lost = true
				return once.Record{}, errNet
			}
			return rec, err
		}
		ran := false
		_, err := once.Do(t.Context(), s, op.For("1"), func(context.Context, once.Key) (string, error) { ran = true; return "", nil })
		rec, _ := s.Get(t.Context(), op.For("1").Key())
		if !ran || err != nil {
			t.Errorf("%v after the first attempt, Do ran: %v, and returned %v; the record is %v, %q, age %v", time.Since(began), ran, err, rec.Status, rec.Reason, rec.Age)
		}
	})
}
