package counted_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/console/counted"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func park(t *testing.T, s store.Shelf, ids ...string) {
	t.Helper()
	for _, id := range ids {
		err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked, Message: broker.Message{ID: id, Topic: "orders"}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func states(t *testing.T, s store.Shelf) (all []string) {
	t.Helper()
	ms, err := s.Shelved(t.Context(), store.ShelfQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		all = append(all, m.Message.ID+" "+m.State.String())
	}
	return all
}

var by = inbox.Decision{By: "ana", Reason: "r"}

// Between the count and the change one message is replayed by somebody else, one is
// parked again, and one is new.
func TestOnlyCountedMessagesAreChanged(t *testing.T) {
	s := memstore.New(nil)
	park(t, s, "a", "b", "c")
	var c counted.Messages
	admin, dry := inbox.Admin{Store: c.Shelf(s)}, by
	dry.DryRun = true
	q := store.ShelfQuery{Consumer: "billing"}
	if tally, err := admin.Discard(t.Context(), q, dry); tally.Changed != 3 || err != nil {
		t.Fatal(tally, err)
	}
	ms, _ := s.Shelved(t.Context(), q)
	ms[0].State, ms[1].Reason = store.Waiting, "changed"
	for _, m := range ms[:2] {
		if err := s.Change(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	park(t, s, "d")
	c.Begin()
	if tally, err := admin.Discard(t.Context(), q, by); tally.Changed != 1 || err != nil {
		t.Error(tally, err)
	}
	if got, want := states(t, s), []string{"a waiting", "b parked", "c discarded", "d parked"}; !slices.Equal(got, want) {
		t.Errorf("the shelf has %v, want %v", got, want)
	}
}

// Next is asked for each page, and Before for each message. An error of either ends
// the change between two messages.
func TestAChangeCanBePacedAndStopped(t *testing.T) {
	for _, stopAt := range []string{"next", "before"} {
		s := memstore.New(nil)
		for i := range 9 {
			park(t, s, fmt.Sprint("m", i))
		}
		stop := errors.New("stop")
		var c counted.Messages
		dealt, pages := 0, 0
		c.Dealt = func(n int) { dealt = n }
		c.Next = func(_ context.Context, most int) (int, error) {
			if pages++; stopAt == "next" && pages == 3 {
				return 0, stop
			}
			return min(most, 2), nil
		}
		c.Before = func() error {
			if stopAt == "before" && dealt == 3 {
				return stop
			}
			return nil
		}
		admin, dry := inbox.Admin{Store: c.Shelf(s)}, by
		dry.DryRun = true
		if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, dry); tally.Matched != 9 || err != nil || pages != 0 {
			t.Fatal(tally, err, pages)
		}
		c.Begin()
		want := map[string]int{"next": 4, "before": 3}[stopAt]
		if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, by); tally.Changed != want || dealt != want || !errors.Is(err, stop) {
			t.Error(stopAt, tally, dealt, err)
		}
	}
}

// What came after the count is not even read, however much it is.
func TestAChangeEndsWithTheLastThatWasCounted(t *testing.T) {
	s := memstore.New(nil)
	for i := range 5 {
		park(t, s, fmt.Sprint("m", i))
	}
	var c counted.Messages
	reads := &reader{AdminStore: s}
	admin, dry := inbox.Admin{Store: c.Shelf(reads)}, by
	dry.DryRun = true
	if tally, err := admin.Replay(t.Context(), store.ShelfQuery{Limit: 2}, dry); tally.Matched != 2 || err != nil {
		t.Fatal(tally, err)
	}
	c.Next = func(context.Context, int) (int, error) { return 1, nil }
	c.Begin()
	reads.n = 0
	if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, by); tally.Changed != 2 || err != nil {
		t.Error(tally, err)
	}
	if reads.n != 2 {
		t.Errorf("%d reads, want 2", reads.n)
	}
}

type reader struct {
	inbox.AdminStore
	n int
}

func (r *reader) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	r.n++
	return r.AdminStore.Shelved(ctx, q)
}
