package backoff_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

func TestNextDoublesUpToTheLimitWithJitter(t *testing.T) {
	b := backoff.Backoff{First: 8, Limit: 50}
	for _, span := range []time.Duration{8, 16, 32, 50, 50, 50} {
		if d := b.Next(); d < span/2 || d > span {
			t.Errorf("%d is not between %d and %d", d, span/2, span)
		}
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := backoff.Sleep(ctx, time.Hour); err != context.Canceled {
		t.Error(err)
	}
	if err := backoff.Sleep(context.Background(), time.Nanosecond); err != nil {
		t.Error(err)
	}
}
