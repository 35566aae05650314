package demo

import (
	"database/sql"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/store/sqlstore"
)

func newBareSide() *side {
	return &side{met: map[string]bool{}, meetings: map[string]*meeting{}}
}

func TestAWindowBeginsOnce(t *testing.T) {
	s := newBareSide()
	q := question{Order: Order{ID: "order-1", Window: afterCharge}}
	if !s.begins(q) || s.begins(q) || s.news != "crash-after-charge, order-1" {
		t.Errorf("it comes true twice, or never; news: %q", s.news)
	}
}

// Two callers meet however late the second one is within the time limit. A third
// caller does not wait.
func TestMeeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begun := newBareSide(), time.Now()
		gone := make(chan time.Duration, 2)
		meet := func() {
			s.meet(t.Context(), "order-1")
			gone <- time.Since(begun)
		}
		go meet()
		time.Sleep(time.Second)
		meet()
		if first, second := <-gone, <-gone; first != time.Second || second != time.Second {
			t.Errorf("they went after %v and %v", first, second)
		}
		if meet(); <-gone != time.Second {
			t.Error("the third waited")
		}
		if s.meet(t.Context(), "order-2"); time.Since(begun) != time.Second+meetTime {
			t.Errorf("alone it waited until %v", time.Since(begun))
		}
	})
}

// What else a process has in hand is waited for, but not where everything is done at once.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begun := newBareSide(), time.Now()
		if s.quiet(t.Context()); time.Since(begun) != quietTime {
			t.Errorf("it waited for %v", time.Since(begun))
		}
		s.mixed, begun = true, time.Now()
		if s.quiet(t.Context()); time.Since(begun) != 0 {
			t.Errorf("it waited for %v", time.Since(begun))
		}
	})
}

// A look that fails is repeated, but not for ever.
func TestLooksThatFailAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
		s, begun := newBareSide(), time.Now()
		s.store = sqlstore.New(db, sqlstore.SQLite, nil)
		if err := s.settle(t.Context()); err == nil || time.Since(begun) < stuckAfter || time.Since(begun) > 2*stuckAfter {
			t.Errorf("after %v it says %v", time.Since(begun), err)
		}
	})
}
