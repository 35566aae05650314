package turn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunAddsTheRatesOfItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tally, err := Run(t.Context(), 4, 100*time.Millisecond, func(context.Context) error {
			time.Sleep(30 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// Each worker begins its fourth unit before the end and finishes it: 4
		// units in 120 ms, not in 100.
		if tally.Units != 16 || tally.PerSecond < 133 || tally.PerSecond > 134 {
			t.Errorf("got %+v, want 16 units, 133.3 per second", tally)
		}
		if tally.P50 != 30*time.Millisecond || tally.P99 != 30*time.Millisecond {
			t.Errorf("got %+v, want latencies of 30ms", tally)
		}
	})
}

func TestRunEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		begun := time.Now()
		units := make(chan error, 1)
		units <- broken
		_, err := Run(t.Context(), 2, time.Hour, func(ctx context.Context) error {
			select {
			case err := <-units:
				return err
			case <-ctx.Done():
				return nil
			}
		})
		if !errors.Is(err, broken) || time.Since(begun) > time.Minute {
			t.Errorf("got %v after %v, want %v at once", err, time.Since(begun), broken)
		}
	})
}
