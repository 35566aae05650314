package turn

import (
	"testing"
	"testing/synctest"
	"time"
)

// A turn of 100 ms begins with the first completion after a quarter of it, and
// ends with the first one after its length.
func TestMeterCountsFromOneEndToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := 0
		m := NewMeter(100*time.Millisecond, func() { stopped++ })
		for range 20 {
			time.Sleep(10 * time.Millisecond)
			m.Done(3, 5*time.Millisecond)
		}
		tally, err := m.Tally()
		// The first completion is at 10 ms. The turn begins at 40 and ends at
		// 140, with the tenth counted completion.
		if err != nil || tally.Units != 30 || tally.PerSecond != 300 {
			t.Errorf("got %+v, %v, want 30 units, 300 per second", tally, err)
		}
		if tally.P50 != 5*time.Millisecond || tally.P99 != 5*time.Millisecond {
			t.Errorf("got %+v, want latencies of 5ms", tally)
		}
		if stopped != 1 {
			t.Errorf("stop was called %d times, want once", stopped)
		}
	})
}

func TestMeterWithoutAnEndHasNoTally(t *testing.T) {
	m := NewMeter(time.Hour, func() { t.Error("stop was called before the length was over") })
	m.Done(1, time.Millisecond)
	m.Done(1, time.Millisecond)
	if tally, err := m.Tally(); err == nil {
		t.Errorf("got %+v and no error", tally)
	}
}
