package name

import (
	"testing"
	"time"
)

func TestOrderedRisesByTheMillisecond(t *testing.T) {
	begin := time.UnixMilli(1_700_000_000_000)
	last := ""
	for _, after := range []time.Duration{0, time.Millisecond, 255 * time.Millisecond, 256 * time.Millisecond, time.Hour, 1 << 58} {
		id := Ordered(begin.Add(after))
		if id <= last || len(id) != 36 || id[14] != '7' {
			t.Errorf("after %v: %q, behind %q", after, id, last)
		}
		last = id
	}
	if one, other := Ordered(begin), Ordered(begin); one == other {
		t.Errorf("two of one millisecond are both %q", one)
	}
}
