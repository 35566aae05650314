//go:build go1.25

package once_test

import (
	"context"
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
