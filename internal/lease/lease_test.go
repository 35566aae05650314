//go:build go1.25

package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/internal/lease"
)

var errCut = errors.New("cut off")

func TestKeepExtendsThreeTimesALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(context.Context) (bool, error) { calls++; return false, nil },
			lost:   func(err error) error { t.Error("lost"); return err },
		}, 30*time.Second, time.Now())
		time.Sleep(61 * time.Second) // fake time
		kept.Stop()
		if calls != 6 || !errors.Is(context.Cause(kept), context.Canceled) {
			t.Errorf("%d calls, %v", calls, context.Cause(kept))
		}
	})
}

func TestKeepCancelsBeforeALeaseThatCannotBeExtendedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(context.Context) (bool, error) {
				if calls++; calls == 1 {
					return false, nil
				}
				return false, errCut
			},
			lost: func(err error) error { return err },
		}, 30*time.Second, begun)
		defer kept.Stop()
		<-kept.Done()
		// Extended once, after 10 seconds: the lease ends at 40.
		if took := time.Since(begun); took < 30*time.Second || took >= 40*time.Second {
			t.Errorf("cancelled after %v", took)
		}
		if context.Cause(kept) != errCut || calls < 5 {
			t.Errorf("%d calls, %v", calls, context.Cause(kept))
		}
	})
}

func TestKeepCancelsAtOnceWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(context.Context) (bool, error) { return true, errCut },
			lost:   func(err error) error { return err },
		}, 30*time.Second, begun.Add(-5*time.Second)) // the claim took that long
		defer kept.Stop()
		<-kept.Done()
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("cancelled after %v", took)
		}
	})
}

func TestKeepGivesACallThatHangsOnlyPartOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
			lost:   func(err error) error { return err },
		}, 30*time.Second, begun)
		defer kept.Stop()
		<-kept.Done()
		if took := time.Since(begun); took > 25*time.Second {
			t.Errorf("cancelled after %v", took)
		}
	})
}

// After a call that met with silence, an eighth of the lease is left for the next.
func TestKeepRepeatsACallThatHungAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), new(atomic.Int32)
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(ctx context.Context) (bool, error) {
				n := calls.Add(1)
				if n == 1 {
					<-t.Context().Done() // it ignores its own context
					return false, t.Context().Err()
				}
				if took := time.Since(begun); n == 2 && took > 24*time.Second*17/24 {
					t.Errorf("called again after %v", took)
				}
				return false, nil
			},
			lost: func(err error) error { t.Error("lost"); return err },
		}, 24*time.Second, begun)
		time.Sleep(30 * time.Second) // fake time
		if kept.Stop(); calls.Load() < 3 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

// The call is not cut off: it ends when its share of the lease does.
func TestStopDoesNotWaitForACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, ended := make(chan struct{}), make(chan error, 1)
		kept := lease.Keep(t.Context(), new(lease.Queue), holder{
			extend: func(ctx context.Context) (bool, error) {
				close(hangs)
				<-ctx.Done()
				ended <- ctx.Err()
				return false, ctx.Err()
			},
			lost: func(err error) error { t.Error("lost"); return err },
		}, 30*time.Second, time.Now())
		<-hangs
		begun := time.Now()
		kept.Stop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("stopped after %v", took)
		}
		if err, took := <-ended, time.Since(begun); err != context.DeadlineExceeded || took > 10*time.Second {
			t.Errorf("the call ended with %v after %v", err, took)
		}
	})
}

// holder is a lease whose calls are counted, or fail.
type holder struct {
	extend func(context.Context) (bool, error)
	lost   func(error) error
}

func (h holder) Extend(ctx context.Context) (bool, error) { return h.extend(ctx) }
func (h holder) Lost(_ context.Context, err error) error  { return h.lost(err) }
