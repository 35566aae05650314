package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// The NotDone of a step must not free the key of the work that it is a step of.
func TestNotDoneOfAStepSaysNothingOfItsParent(t *testing.T) {
	steps := map[string]func(ctx context.Context, s *memstore.Store, parent once.Key) error{
		"Do": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			_, err := once.Do(ctx, s, resent.Under(parent), (&counter{}).run("", once.NotDone(errNet)))
			return err
		},
		"DoTx": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			_, err := once.DoTx(ctx, s, inTx.Under(parent), (&counter{}).write("row", "", once.NotDone(errNet)))
			return err
		},
		"InTx": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			tx := s.Begin()
			defer tx.Rollback()
			_, err := once.InTx(ctx, s, tx, inTx.Under(parent), func(context.Context) (string, error) { return "", once.NotDone(errNet) })
			return err
		},
	}
	for name, step := range steps {
		s, charged := memstore.New(nil), 0
		for range 2 {
			_, err := once.Do(testCtx, s, parked.For("1"), func(ctx context.Context, key once.Key) (string, error) {
				charged++
				return "charged", step(ctx, s, key)
			})
			wantErr(t, err, once.ErrParked)
		}
		if charged != 1 {
			t.Errorf("%s: charged %d times", name, charged)
		}
	}
}

func TestTheCallerOfAStepStillSeesItsError(t *testing.T) {
	_, err := once.Do(testCtx, memstore.New(nil), parked.For("1"), (&counter{}).run("", once.NotDone(once.RetryAfter(time.Minute, errNet))))
	wantErr(t, err, errNet)
	if after, ok := once.MayRetry(err); after != time.Minute || !ok {
		t.Errorf("retry after %v, %v", after, ok)
	}
	_, err = once.Do(testCtx, memstore.New(nil), parked.For("1"), (&counter{}).run("", once.NotDone(once.Permanent(errNet))))
	if _, ok := once.MayRetry(err); ok {
		t.Error("permanent, and to be retried")
	}
}
