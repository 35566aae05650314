//go:build go1.25

package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/internal/lease"
)

// slowStore serves a number of calls at a time, in turn. A lease that has lapsed
// is lost.
type slowStore struct {
	takes  time.Duration // each call
	places chan struct{}
}

const length = 12 * time.Second

func newSlowStore(atATime int, takes time.Duration) *slowStore {
	return &slowStore{takes, make(chan struct{}, atATime)}
}

// lease returns a lease that has just begun.
func (s *slowStore) lease() holder {
	lapses := time.Now().Add(length)
	return holder{
		extend: func(ctx context.Context) (bool, error) {
			select {
			case s.places <- struct{}{}:
			case <-ctx.Done():
				return false, ctx.Err()
			}
			defer func() { <-s.places }()
			time.Sleep(s.takes) // fake time
			if !time.Now().Before(lapses) {
				return true, errors.New("lapsed")
			}
			lapses = time.Now().Add(length)
			return false, nil
		},
		lost: func(err error) error { return err },
	}
}

// keep extends leases that begin together for three times their length, and returns
// how many are lost.
func keep(t *testing.T, leases []holder) (lost int) {
	q, begun := new(lease.Queue), time.Now()
	var all []*lease.Kept
	for _, h := range leases {
		all = append(all, lease.Keep(t.Context(), q, h, length, begun))
	}
	time.Sleep(3 * length) // fake time
	for _, k := range all {
		if k.Err() != nil {
			lost++
		}
	}
	for _, k := range all {
		k.Stop()
	}
	time.Sleep(length) // the calls in progress end
	return lost
}

// Three extensions in each lease would be 250 calls a second. A slow store needs
// fewer: a lease may be extended shortly before it ends.
func TestASlowStoreKeepsAsManyLeasesAsItCan(t *testing.T) {
	for name, c := range map[string]struct {
		atATime int
		takes   time.Duration
		atMost  int // leases of 1000 are lost
	}{
		"capacity 1":           {5, 20 * time.Millisecond, 0},
		"capacity 1, far away": {50, 200 * time.Millisecond, 0},
		"capacity 4/5":         {1, 5 * time.Millisecond, 0},
		"capacity 4/5, slower": {20, 100 * time.Millisecond, 0},
		"capacity 1/5":         {1, 20 * time.Millisecond, 800},
		"capacity 1/5, slower": {5, 100 * time.Millisecond, 800},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newSlowStore(c.atATime, c.takes)
				var leases []holder
				for range 1000 {
					leases = append(leases, store.lease())
				}
				if lost := keep(t, leases); lost > c.atMost {
					t.Errorf("%d leases of 1000 are lost, want %d at most", lost, c.atMost)
				}
			})
		})
	}
}

// A part of a store may be down.
func TestCallsThatHangKeepNoOtherLeaseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(3, 10*time.Millisecond)
		hangs := holder{
			extend: func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
			lost:   func(err error) error { return err },
		}
		var leases []holder
		for range 300 {
			leases = append(leases, hangs, store.lease())
		}
		if lost := keep(t, leases); lost != 300 {
			t.Errorf("%d leases are lost, want the 300 whose calls hang", lost)
		}
	})
}

func TestCallsForLongLeasesThatHangKeepNoShortOneWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, store, begun := new(lease.Queue), newSlowStore(1000, 5*time.Millisecond), time.Now()
		hangs := holder{
			extend: func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
			lost:   func(err error) error { return err },
		}
		var long, short []*lease.Kept
		for range 100 {
			long = append(long, lease.Keep(t.Context(), q, hangs, 10*time.Minute, begun))
		}
		for range 50 {
			short = append(short, lease.Keep(t.Context(), q, store.lease(), length, begun))
		}
		time.Sleep(9 * time.Minute)
		for i, k := range short {
			if k.Err() != nil {
				t.Errorf("short lease %d is lost: %v", i, context.Cause(k))
			}
		}
		for _, k := range append(long, short...) {
			k.Stop()
		}
		time.Sleep(time.Hour)
	})
}

// A server may go away, with all calls in progress.
func TestAStoreThatHangsForAMomentLosesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, begun := newSlowStore(5, 20*time.Millisecond), time.Now()
		var leases []holder
		for range 300 {
			h := store.lease()
			extend := h.extend
			h.extend = func(ctx context.Context) (bool, error) {
				if up := begun.Add(length/3 + length/24); time.Now().Before(up) {
					<-ctx.Done()
					return false, ctx.Err()
				}
				return extend(ctx)
			}
			leases = append(leases, h)
		}
		if lost := keep(t, leases); lost > 0 {
			t.Errorf("%d leases of 300 are lost", lost)
		}
	})
}

func TestManyLeasesThatBeginTogetherAreNotExtendedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun, during := time.Now(), make(map[time.Duration]int)
		store := newSlowStore(1, time.Nanosecond)
		var leases []holder
		for range 300 {
			h := store.lease()
			extend := h.extend
			h.extend = func(ctx context.Context) (bool, error) {
				mu.Lock()
				during[time.Since(begun).Truncate(length/120)]++
				mu.Unlock()
				return extend(ctx)
			}
			leases = append(leases, h)
		}
		if lost := keep(t, leases); lost > 0 {
			t.Errorf("%d leases of 300 are lost", lost)
		}
		for when, n := range during { // all of them at once would be 300
			if n > 60 {
				t.Errorf("%d leases are extended after %v", n, when)
			}
		}
	})
}
