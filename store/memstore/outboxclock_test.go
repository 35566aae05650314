//go:build go1.25

package memstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A lease lapses, and a message is due, exactly when its time has passed.
func TestOutboxTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b := memstore.New(nil), [16]byte{1}, [16]byte{2}
		m := outgoing("1")[0]
		m.Delay = time.Minute
		put(t, s, m)
		lane := []int{store.Lane(&m.Message)}
		leased := func(when string, relay, to [16]byte, relays int) {
			t.Helper()
			as, err := s.LeaseLanes(ctx, relay, time.Minute, lane)
			if err != nil || as.Lanes[lane[0]].Relay != to || as.Relays != relays {
				t.Errorf("%s: %+v, %v", when, as, err)
			}
		}
		wakes := func(when string, woken int, next time.Duration) {
			t.Helper()
			if n, left, err := s.WakeDelayed(ctx, a, store.Pending, 9); n != woken || left != next || err != nil {
				t.Errorf("%s WakeDelayed returned %d, %v, %v", when, n, left, err)
			}
		}
		leased("at first", a, a, 1)
		time.Sleep(time.Minute - 1)
		wakes("just before the message is due", 0, 1)
		leased("just before the lease ends", b, a, 2)
		wantOutgoing(t, s, store.Pending)
		time.Sleep(time.Nanosecond)
		wakes("when the lease ends, and nobody has taken the lane,", 1, time.Hour)
		wantOutgoing(t, s, store.Pending, "1")
		leased("when the lease ends", b, b, 1)
		leased("when another relay has the lane", a, b, 2)
	})
}

// A Wait without a ring is idle: it does not stop a fake clock.
func TestAWaitIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		e := hear(t, s)
		defer e.Close()
		go func() {
			time.Sleep(24 * time.Hour)
			put(t, s, outgoing("1")...)
		}()
		begun := time.Now()
		if err := e.Wait(ctx); err != nil || time.Since(begun) != 24*time.Hour {
			t.Errorf("Wait returned %v after %v", err, time.Since(begun))
		}
		go func() {
			time.Sleep(24 * time.Hour)
			s.Close()
		}()
		if err := e.Wait(ctx); !errors.Is(err, once.ErrClosed) || time.Since(begun) != 48*time.Hour {
			t.Errorf("Wait of a store that was closed returned %v after %v", err, time.Since(begun))
		}
	})
}

// A Published message is kept from when it was published, not from when it was
// put.
func TestPublishedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		put(t, s, outgoing("1")...)
		time.Sleep(time.Hour)
		if n, err := s.Sent(ctx, [16]byte{}, wantOutgoing(t, s, store.Pending, "1"), store.Keep); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		time.Sleep(time.Minute)
		for want, keep := range []time.Duration{time.Minute, time.Minute - 1} {
			if n, err := s.ForgetOutgoing(ctx, keep, 9); n != want || err != nil {
				t.Errorf("ForgetOutgoing of what is older than %v: %d, %v", keep, n, err)
			}
		}
	})
}
