//go:build go1.25

package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/internal/lease"
)

var errCut = errors.New("cut off")

func TestKeepExtendsThreeTimesALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		alive, stop := lease.Keeper{
			Length: 30 * time.Second, Begun: time.Now(),
			Extend: func(context.Context) (bool, error) { calls++; return false, nil },
			Lost:   func(err error) error { t.Error("lost"); return err },
		}.Keep(t.Context())
		time.Sleep(61 * time.Second) // fake time
		stop()
		if calls != 6 || !errors.Is(context.Cause(alive), context.Canceled) {
			t.Errorf("%d calls, %v", calls, context.Cause(alive))
		}
	})
}

func TestKeepCancelsBeforeALeaseThatCannotBeExtendedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		alive, stop := lease.Keeper{
			Length: 30 * time.Second, Begun: begun,
			Extend: func(context.Context) (bool, error) {
				if calls++; calls == 1 {
					return false, nil
				}
				return false, errCut
			},
			Lost: func(err error) error { return err },
		}.Keep(t.Context())
		defer stop()
		<-alive.Done()
		// Extended once, after 10 seconds: the lease ends at 40.
		if took := time.Since(begun); took < 30*time.Second || took >= 40*time.Second {
			t.Errorf("cancelled after %v", took)
		}
		if context.Cause(alive) != errCut || calls < 5 {
			t.Errorf("%d calls, %v", calls, context.Cause(alive))
		}
	})
}

func TestKeepCancelsAtOnceWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		alive, stop := lease.Keeper{
			Length: 30 * time.Second, Begun: begun.Add(-5 * time.Second), // the claim took that long
			Extend: func(context.Context) (bool, error) { return true, errCut },
			Lost:   func(err error) error { return err },
		}.Keep(t.Context())
		defer stop()
		<-alive.Done()
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("cancelled after %v", took)
		}
	})
}

func TestKeepGivesACallThatHangsOnlyPartOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		alive, stop := lease.Keeper{
			Length: 30 * time.Second, Begun: begun,
			Extend: func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
			Lost:   func(err error) error { return err },
		}.Keep(t.Context())
		defer stop()
		<-alive.Done()
		if took := time.Since(begun); took > 25*time.Second {
			t.Errorf("cancelled after %v", took)
		}
	})
}

// The call is not cut off: it ends when its share of the lease does.
func TestStopDoesNotWaitForACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, ended := make(chan struct{}), make(chan error, 1)
		_, stop := lease.Keeper{
			Length: 30 * time.Second, Begun: time.Now(),
			Extend: func(ctx context.Context) (bool, error) {
				close(hangs)
				<-ctx.Done()
				ended <- ctx.Err()
				return false, ctx.Err()
			},
			Lost: func(err error) error { t.Error("lost"); return err },
		}.Keep(t.Context())
		<-hangs
		begun := time.Now()
		stop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("stopped after %v", took)
		}
		if err, took := <-ended, time.Since(begun); err != context.DeadlineExceeded || took > 10*time.Second {
			t.Errorf("the call ended with %v after %v", err, took)
		}
	})
}
