package console

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// numbers is a list of the numbers from 1, of which pages are read.
type numbers struct {
	until int64
	read  int // pages
}

func (n *numbers) next(after int64) (page []int64, err error) {
	n.read++
	for i := after + 1; i <= n.until && len(page) < inPage; i++ {
		page = append(page, i)
	}
	return page, nil
}

// A list that is filtered here has each message once, in pages that are full where
// there is time, and goes on where it was cut.
func TestFilteredListsAreWhole(t *testing.T) {
	for _, every := range []int64{1, 2, 19, 20, 21, 999, 1000, 1001, 4999, 6000} {
		for _, step := range []time.Duration{0, glanceTime} { // no time passes, or each look at the clock is too late
			clock := time.Unix(1, 0)
			v := &view{Console: &Console{now: func() time.Time { clock = clock.Add(step); return clock }}, r: httptest.NewRequest("GET", "/messages", nil), begun: clock}
			n := &numbers{until: 5000}
			var all []int64
			for after, pages := int64(0), 0; ; pages++ {
				before := n.read
				l, err := sift(v, after, sieve[int64]{next: n.next, seq: func(i int64) int64 { return i }, match: func(i int64) bool { return i%every == 0 }})
				if err != nil || len(l.found) > messagesOnPage || l.cut && len(l.found) == messagesOnPage || pages > 200 {
					t.Fatalf("each %d: %d in page %d, cut %v: %v", every, len(l.found), pages, l.cut, err)
				}
				if step > 0 && n.read-before > 2 {
					t.Errorf("each %d: %d pages are read although the time is over", every, n.read-before)
				}
				if step == 0 && l.more && len(l.found) < messagesOnPage {
					t.Errorf("each %d: a page has %d", every, len(l.found))
				}
				if all = append(all, l.found...); !l.more {
					break
				}
				if l.last <= after {
					t.Fatalf("each %d: it does not go on after %d", every, after)
				}
				after = l.last
			}
			if want := int(5000 / every); len(all) != want || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != want {
				t.Errorf("each %d, a step of %v: %d are found, want %d", every, step, len(all), want)
			}
		}
	}
}
