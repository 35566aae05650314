//go:build go1.25

package once_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
)

func TestHeartbeatOutlivesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ps := processes(2)
		op := &once.Operation[string]{Name: "long", OnUnknown: once.Resend, Policy: once.Policy{Lease: 300 * time.Millisecond}}
		var extended atomic.Int64
		enough := make(chan struct{})
		ps[0].extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
			err := ps[0].Store.Extend(ctx, fence, d)
			if err == nil && extended.Add(1) == 9 { // about three leases
				close(enough)
			}
			return err
		}
		running := make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := once.Do(t.Context(), ps[0], op.For("1"), func(ctx context.Context, _ once.Key) (string, error) {
				close(running)
				select {
				case <-enough:
					return "first", nil
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}()
		<-running
		c := counter{}
		if got, err := once.Do(t.Context(), ps[1], op.For("1"), c.run("second", nil)); got != "first" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		wg.Wait()
		c.ran(t, 0)
	})
}

// The reply to the extension that follows a slow claim may come after the lease.
func TestWorkDoesNotStartOnALeaseThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ps := processes(2)
		op := &once.Operation[string]{Name: "slow", OnUnknown: once.Resend, Policy: once.Policy{Lease: time.Second}}
		slow := 0
		ps[0].claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			rec, err := claim(ctx, r)
			if slow++; slow == 1 {
				time.Sleep(r.Lease / 2)
			}
			return rec, err
		}
		ps[0].extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
			err := ps[0].Store.Extend(ctx, fence, d)
			if slow++; slow == 2 {
				time.Sleep(3 * d)
			}
			return err
		}
		got, err := once.Do(t.Context(), ps[0], op.For("1"), func(ctx context.Context, k once.Key) (string, error) {
			if rec, err := ps[1].Get(ctx, k); err != nil || rec.Status != once.Running {
				t.Errorf("when the work starts, its key is %v, %v", rec.Status, err)
			}
			return "done", nil
		})
		if got != "done" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// Work does not wait for ever for a store that takes longer than a lease for each
// extension.
func TestAStoreThatIsSlowerThanLeasesRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ps := processes(1)
		op := &once.Operation[string]{Name: "slow", OnUnknown: once.Resend, Policy: once.Policy{Lease: time.Second}}
		ps[0].claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			rec, err := claim(ctx, r)
			time.Sleep(r.Lease / 2)
			return rec, err
		}
		ps[0].extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
			err := ps[0].Store.Extend(ctx, fence, d)
			time.Sleep(d * 9 / 10)
			return err
		}
		c := counter{}
		if _, err := once.Do(t.Context(), ps[0], op.For("1"), c.run("done", nil)); err == nil {
			t.Error("no error")
		}
		c.ran(t, 0)
	})
}

// The reply to a claim is lost, and all its repeats meet it in flight. When it is
// recognised at last, its lease has lasted for a while.
func TestALeaseCountsFromTheClaimThatIsRecognised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ps := processes(2)
		op := &once.Operation[string]{Name: "slow", OnUnknown: once.Resend, Policy: once.Policy{Lease: 4 * time.Second}}
		calls := 0
		ps[0].claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			switch calls++; {
			case calls == 1:
				_, err := claim(ctx, r)
				return once.Record{}, errors.Join(err, errNet)
			case calls <= 5:
				time.Sleep(400 * time.Millisecond)
				return once.Record{Key: r.Key, Status: once.Running}, nil
			}
			return claim(ctx, r)
		}
		got, err := once.Do(t.Context(), ps[0], op.For("1"), func(ctx context.Context, k once.Key) (string, error) {
			if rec, err := ps[1].Get(ctx, k); err != nil || rec.LeaseLeft < op.Policy.Lease*2/3 {
				t.Errorf("when the work starts, %v of its lease is left, %v", rec.LeaseLeft, err)
			}
			return "done", nil
		})
		if got != "done" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// The keys begin together, and the store can extend a fifth of them in time.
func TestASlowStoreKeepsTheLeasesThatItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, lease = 500, 12 * time.Second
		_, ps := processes(1)
		op := &once.Operation[string]{Name: "many", OnUnknown: once.Resend, Policy: once.Policy{Lease: lease}}
		serving := make(chan struct{}, 1)
		ps[0].extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
			select {
			case serving <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			defer func() { <-serving }()
			time.Sleep(lease / 3 / (keys / 5)) // fake time
			return ps[0].Store.Extend(ctx, fence, d)
		}
		var wg sync.WaitGroup
		var kept atomic.Int64
		for i := range keys {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := once.Do(t.Context(), ps[0], op.For(strconv.Itoa(i+1)), func(ctx context.Context, k once.Key) (string, error) {
					select {
					case <-time.After(5 * lease):
						if rec, err := ps[0].Get(ctx, k); err != nil || rec.Status != once.Running {
							t.Errorf("the work of a key runs that is %v, %v", rec.Status, err)
						}
						kept.Add(1)
						return "done", nil
					case <-ctx.Done():
						if !errors.Is(context.Cause(ctx), once.ErrLeaseLost) {
							t.Errorf("the context of the work was cancelled for %v", context.Cause(ctx))
						}
						return "", once.NotDone(context.Cause(ctx))
					}
				})
				if err != nil && !errors.Is(err, once.ErrLeaseLost) {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		time.Sleep(lease) // calls in progress end
		if kept.Load() < keys/5 {
			t.Errorf("%d leases of %d are kept, want a fifth at least", kept.Load(), keys)
		}
	})
}
