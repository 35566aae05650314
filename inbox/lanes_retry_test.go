//go:build go1.25

package inbox

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRetriedItemsAreAtTheFrontOfTheirLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes()
		items := inLane("a", "a", "a")
		l.put(items)
		got, from := l.take(2, false)
		l.release(from, got, map[*item]time.Duration{got[0]: time.Minute})
		begun := time.Now()
		got, from = l.take(10, false)
		if ids(got) != "012" || time.Since(begun) != time.Minute {
			t.Error(ids(got), "after", time.Since(begun))
		}
		l.release(from, nil, nil)
		if len(l.named) != 0 {
			t.Error("an empty lane is kept")
		}
	})
}

func TestAPausedLaneHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes()
		l.put(inLane("a", ""))
		got, from := l.take(10, false)
		l.release(from, got, map[*item]time.Duration{got[0]: time.Hour, got[1]: time.Minute})
		l.put(inLane("b"))
		if got, _ := l.take(10, false); got[0].lane != "b" {
			t.Error(got[0].lane)
		}
		begun := time.Now()
		if got, _ := l.take(10, false); ids(got) != "1" || time.Since(begun) != time.Minute {
			t.Error(ids(got), time.Since(begun))
		}
		if left := l.close(); ids(left) != "0" {
			t.Error("left:", ids(left))
		}
	})
}
