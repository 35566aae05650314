package seedbugs_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/store/memstore"
)

// The other system has counted since the first attempt. That the last one is young does not matter to it.
func TestTheValidityOfAKeyBeginsWithItsFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := memstore.New(nil), 0
		op := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: time.Hour}
		do := func() error {
			_, err := once.Do(t.Context(), s, op.For("1"), func(context.Context, once.Key) (string, error) {
				runs++
				return "", errors.New("timeout")
			})
			return err
		}
		for range 2 {
			if err := do(); !errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("work of which nobody knows how it ended returned %v", err)
			}
			time.Sleep(40 * time.Minute) // fake time
		}
		if err := do(); !errors.Is(err, once.ErrParked) || runs != 2 {
			t.Errorf("80 minutes after the first attempt Do returned %v, after %d runs", err, runs)
		}
	})
}

// The store may have counted from the moment of the request: what it took to answer is gone from the lease.
func TestALeaseIsCountedFromItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(context.Context) (bool, error) {
				if calls++; calls == 1 {
					time.Sleep(9 * time.Second) // fake time
					return false, nil
				}
				return false, errors.New("cut off")
			},
			lost: func(err error) error { return err },
		}, 30*time.Second, begun)
		defer kept.Stop()
		<-kept.Done()
		// It was asked for after 10 seconds, and ends at 40.
		if took := time.Since(begun); took >= 40*time.Second {
			t.Errorf("cancelled after %v", took)
		}
	})
}

// asked counts what a store is asked for.
type asked struct {
	*memstore.Store
	claims, gets atomic.Int64
}

func (s *asked) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	s.claims.Add(1)
	return s.Store.Claim(ctx, r)
}

func (s *asked) Get(ctx context.Context, k once.Key) (once.Record, error) {
	s.gets.Add(1)
	return s.Store.Get(ctx, k)
}

func TestDuplicatesInAProcessAskNothingWhileTheyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &asked{Store: memstore.New(nil)}
		op := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
		end := make(chan struct{})
		var wg sync.WaitGroup
		for range 9 {
			wg.Go(func() {
				got, err := once.Do(t.Context(), s, op.For("1"), func(context.Context, once.Key) (string, error) {
					<-end
					return "first", nil
				})
				if got != "first" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
		time.Sleep(time.Second) // fake time, in which all of them wait
		if claims, gets := s.claims.Load(), s.gets.Load(); claims != 1 || gets != 0 {
			t.Errorf("%d claims and %d looks at the record by 9 calls in one process, want one claim", claims, gets)
		}
		close(end)
		wg.Wait()
	})
}

func TestWaitsOfTheSameSpanDiffer(t *testing.T) {
	b := backoff.Backoff{First: time.Second, Limit: time.Second}
	waits := make(map[time.Duration]bool)
	for range 64 {
		waits[b.Next()] = true
	}
	if len(waits) < 2 {
		t.Error("64 waits in a row were the same: rivals that met once meet again")
	}
}

// What a session takes for its time zone must not move the end of a lease that another session has set.
func TestSessionsInTwoTimeZonesShareOneClock(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		here, dsn := e.Migrated(t)
		newYork := e.Connect(t, dsn, "time_zone=%27-05%3A00%27")
		for id, pair := range map[string][2]*engine.Database{"west": {here, newYork}, "east": {newYork, here}} {
			key := once.Key{Operation: "pay", ID: id}
			r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Hour}
			if _, err := pair[0].Store.Claim(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			rec, err := pair[1].Store.Get(t.Context(), key)
			if err != nil || rec.Status != once.Running || rec.LeaseLeft < 30*time.Minute || rec.LeaseLeft > time.Hour {
				t.Errorf("%s: a lease of an hour has %v left, the record is %v, %v", id, rec.LeaseLeft, rec.Status, err)
			}
		}
	}, engine.MariaDB)
}

// holder is a lease whose calls are counted, or fail.
type holder struct {
	extend func(context.Context) (bool, error)
	lost   func(error) error
}

func (h holder) Extend(ctx context.Context) (bool, error) { return h.extend(ctx) }
func (h holder) Lost(_ context.Context, err error) error  { return h.lost(err) }
