//go:build go1.25

package once_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// Each call that joined gets the answer, and its own copy of it.
func TestJoinersGetCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		op := &once.Operation[once.Outcome]{Name: "raw", OnUnknown: once.Park}
		end := make(chan struct{})
		var wg sync.WaitGroup
		do := func(run func(context.Context, once.Key) (once.Outcome, error)) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				got, err := once.Do(testCtx, s, op.For("1"), run)
				if err != nil || string(got.Body) != "first" {
					t.Errorf("%q, %v", got.Body, err)
				}
				copy(got.Body, "spoil")
			}()
		}
		do(func(context.Context, once.Key) (once.Outcome, error) {
			<-end
			return once.Outcome{Body: []byte("first")}, nil
		})
		synctest.Wait()
		for range 8 {
			do(never[once.Outcome](t))
		}
		synctest.Wait() // all of them have joined
		close(end)
		wg.Wait()
	})
}

func TestJoinEndsAfterItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ps := processes(2)
		op := &once.Operation[string]{Name: "slow", OnUnknown: once.Park, Policy: once.Policy{Wait: 7 * time.Second}}
		end := make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, _ = once.Do(testCtx, ps[0], op.For("1"), func(context.Context, once.Key) (string, error) { <-end; return "", nil })
		}()
		synctest.Wait()
		for i, s := range ps {
			begun := time.Now()
			_, err := once.Do(testCtx, s, op.For("1"), never[string](t))
			wantErr(t, err, once.ErrInProgress)
			if took := time.Since(begun); took < 7*time.Second || took > 8*time.Second {
				t.Errorf("process %d waited for %v", i, took)
			}
			if after, ok := once.MayRetry(err); !ok || after <= 0 || after > 30*time.Second {
				t.Errorf("process %d: retry after %v, %v", i, after, ok)
			}
		}
		close(end)
		wg.Wait()
	})
}
