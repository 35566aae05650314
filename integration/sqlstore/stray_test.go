package sqlstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// A row that another program inserts in a state of relays would never be
// published. The relay makes it stuck, with a reason, and leaves its own alone.
func TestRowsInAStateOfRelaysAreStuck(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for i, state := range []int{4, 5, 4, 0} {
			mustExec(t, db, fmt.Sprintf("INSERT INTO once_outbox (id, topic, state, lane) VALUES ('m%d', 'orders', %d, %d)", i, state, i))
		}
		relay := [16]byte{1}
		_, err := s.LeaseLanes(t.Context(), relay, time.Minute, []int{0, 1, 2, 3})
		must(t, err)
		page, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Pending})
		must(t, err)
		_, err = s.Sent(t.Context(), relay, page, store.Keep)
		must(t, err)
		wake := func(s *sqlstore.Store) {
			t.Helper()
			_, _, err := s.WakeDelayed(t.Context(), relay, store.Pending, 10)
			must(t, err)
		}
		stuck := func() (ids []string) {
			t.Helper()
			page, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Stuck})
			must(t, err)
			for _, m := range page {
				if ids = append(ids, m.Message.ID); !strings.Contains(m.Reason, "only relays give") {
					t.Errorf("the reason of %s is %q", m.Message.ID, m.Reason)
				}
			}
			return ids
		}
		wake(s)
		if got := stuck(); !slices.Equal(got, []string{"m0", "m1", "m2"}) {
			t.Errorf("%v are stuck, want m0, m1 and m2", got)
		}
		if kept, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Published}); err != nil || len(kept) != 1 {
			t.Errorf("%d messages are kept, %v, want the one that was published", len(kept), err)
		}
		mustExec(t, db, "INSERT INTO once_outbox (id, topic, state, lane) VALUES ('m4', 'orders', 4, 9)")
		wake(sqlstore.New(db, e.dialect, nil))
		if got := stuck(); len(got) != 3 {
			t.Errorf("%v are stuck, also of a lane that the relay has not leased", got)
		}
	})
}

// A row that stands between kept ones is found as well.
func TestARowInAStateOfRelaysIsFoundAmongKeptOnes(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for i := range 501 {
			changed := "1"
			if i == 250 {
				changed = "NULL"
			}
			mustExec(t, db, fmt.Sprintf("INSERT INTO once_outbox (id, topic, state, lane, changed) VALUES ('m%d', 'orders', 4, 3, %s)", i, changed))
		}
		relay := [16]byte{1}
		_, err := s.LeaseLanes(t.Context(), relay, time.Minute, []int{3})
		must(t, err)
		_, _, err = s.WakeDelayed(t.Context(), relay, store.Pending, 10)
		must(t, err)
		page, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Stuck})
		if err != nil || len(page) != 1 || page[0].Message.ID != "m250" {
			t.Errorf("stuck are %+v, %v, want m250", page, err)
		}
	})
}
