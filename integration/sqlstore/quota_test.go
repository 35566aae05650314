package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/sqlstore"
)

// shortPages makes the pages of a store short.
type shortPages struct {
	*sqlstore.Store
	after func()
}

func (s *shortPages) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	q.Limit = 5
	page, err := s.Store.List(ctx, q)
	if s.after != nil {
		s.after()
	}
	return page, err
}

// The clock is that of the engine.
func TestQuotaCountsKeysInEveryState(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		inner, _ := e.migrated(t)
		s := &shortPages{Store: inner}
		work := &once.Operation[int]{Name: "pay", OnUnknown: once.Park}
		do := func(scope, id string, err error) {
			t.Helper()
			_, got := once.Do(t.Context(), s, work.For(id).In(scope), func(context.Context, once.Key) (int, error) { return 1, err })
			if (got != nil) != (err != nil) {
				t.Fatal(got)
			}
		}
		for i := range 10 {
			do("a", fmt.Sprint("done", i), nil)
			do("a", fmt.Sprint("released", i), once.NotDone(errors.New("later")))
			do("b", fmt.Sprint("parked", i), errors.New("boom"))
		}
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 25}, Share: 1}
		must(t, q.Count(t.Context()))
		if a, b := q.Used("a"), q.Used("b"); a != 20 || b != 10 {
			t.Errorf("a has %d keys, b has %d, want 20 and 10", a, b)
		}
		came := 0
		admit := func() {
			if leave, wait := q.Admit(once.Key{Scope: "a", Operation: "pay", ID: fmt.Sprint("new", came)}); wait == 0 {
				do("a", fmt.Sprint("new", came), nil)
				came++
				leave(true)
			}
		}
		s.after = admit
		must(t, q.Count(t.Context()))
		s.after = nil
		if used := q.Used("a"); used < 20+came || used > 20+2*came {
			t.Errorf("a has %d keys, and %d came while it counted", used, came)
		}
		must(t, q.Count(t.Context()))
		for range 10 {
			admit()
		}
		if used := q.Used("a"); used != 25 || came != 5 {
			t.Errorf("a has %d keys, of which %d were let in; want 25 and 5", used, came)
		}
		_, wait := q.Admit(once.Key{Scope: "a", Operation: "pay", ID: "one too many"})
		if wait < 10*time.Second {
			t.Errorf("the next has to wait %v", wait)
		}
	})
}
