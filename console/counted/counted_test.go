package counted_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/console/counted"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/outbox"
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

// A stop is between two messages: the key of one is decided about if and only if the
// message is, whichever of the two is first.
func TestAStopDecidesAboutNoKeyWithoutItsMessage(t *testing.T) {
	for _, state := range []store.ShelfState{store.Parked, store.Waiting} {
		for stopAt := range 5 {
			t.Run(fmt.Sprint(state, " ", stopAt), func(t *testing.T) {
				s := memstore.New(nil)
				for i := range 5 {
					id := fmt.Sprint("m", i)
					err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", Key: id, State: state, Message: broker.Message{ID: id, Topic: "orders"}}})
					if err != nil {
						t.Fatal(err)
					}
				}
				stop := errors.New("stop")
				var c counted.Messages
				admin, dry, asked := inbox.Admin{Store: c.Shelf(s)}, by, 0
				discard := admin.Discard
				if state == store.Waiting {
					discard = admin.DiscardWaiting
				}
				c.Before = func() error {
					if asked++; asked > stopAt {
						return stop
					}
					return nil
				}
				dry.DryRun = true
				q := store.ShelfQuery{Consumer: "billing"}
				if tally, err := discard(t.Context(), q, dry); tally.Changed != 5 || err != nil {
					t.Fatal(tally, err)
				}
				c.Begin()
				tally, err := discard(t.Context(), q, by)
				if !errors.Is(err, stop) || tally.Changed != stopAt {
					t.Errorf("%+v, %v", tally, err)
				}
				for i, m := range states(t, s) {
					id := fmt.Sprint("m", i)
					rec, err := s.Get(t.Context(), once.Key{Operation: "billing", ID: id})
					if err != nil {
						t.Fatal(err)
					}
					if gone := i < stopAt; (m == id+" discarded") != gone || (rec.Status == once.Done) != gone {
						t.Errorf("stopped at %d: %s, and its key is %v", stopAt, m, rec.Status)
					}
				}
			})
		}
	}
}

// unsettling is a store whose process ends before it settles a key.
type unsettling struct{ inbox.AdminStore }

func (unsettling) Claim(context.Context, once.ClaimRequest) (once.Record, error) {
	return once.Record{}, errors.New("the process has ended")
}

// A discard that was interrupted is counted and completed by the same one. Other
// messages that were discarded are not counted.
func TestADiscardThatWasInterruptedIsCounted(t *testing.T) {
	s := memstore.New(nil)
	shelve := func(ids ...string) {
		for _, id := range ids {
			err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", Key: id, State: store.Parked, Message: broker.Message{ID: id, Topic: "orders"}}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	q := store.ShelfQuery{Consumer: "billing"}
	shelve("a")
	if tally, err := (inbox.Admin{Store: s}).Discard(t.Context(), q, by); tally.Changed != 1 || err != nil {
		t.Fatal(tally, err)
	}
	shelve("b")
	if tally, err := (inbox.Admin{Store: unsettling{s}}).Discard(t.Context(), q, by); tally.Changed != 0 || err == nil {
		t.Fatal(tally, err)
	}
	shelve("c")
	var c counted.Messages
	counts := 0
	c.Counted = func(n int) { counts = n }
	admin, dry := inbox.Admin{Store: c.Shelf(s)}, by
	dry.DryRun = true
	if tally, err := admin.Discard(t.Context(), q, dry); tally.Matched != 2 || tally.Changed != 2 || err != nil || counts != 1 {
		t.Errorf("%+v, %v, and %d were counted", tally, err, counts)
	}
	c.Begin()
	if tally, err := admin.Discard(t.Context(), q, by); tally.Matched != 2 || tally.Changed != 2 || err != nil {
		t.Errorf("%+v, %v", tally, err)
	}
	for _, id := range []string{"a", "b", "c"} {
		if rec, err := s.Get(t.Context(), once.Key{Operation: "billing", ID: id}); err != nil || rec.Status != once.Done {
			t.Errorf("the key of %s is %v, %v", id, rec.Status, err)
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

// failed parks messages whose reasons are in turn of some causes, with an id in each.
func failed(t *testing.T, s store.Shelf, sealing *once.Sealing, n int, causes ...string) {
	t.Helper()
	var ms []store.Shelved
	for i := range n {
		m := store.Shelved{Consumer: "billing", State: store.Parked, Reason: causes[i%len(causes)] + fmt.Sprint(" order-", i),
			Message: broker.Message{ID: fmt.Sprint("m", i), Topic: "orders"}}
		ms = append(ms, store.SealShelved(sealing, m))
	}
	if err := s.Shelve(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
}

func groupOf(reason string) string { return alike.ID(alike.Text(reason)) }

// tally counts the messages of each cause in each state.
func tallies(t *testing.T, s inbox.AdminStore) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for after := int64(0); ; {
		ms, err := inbox.Admin{Store: s}.List(t.Context(), store.ShelfQuery{Limit: 1000, After: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) == 0 {
			return all
		}
		for _, m := range ms {
			after = m.Seq
			cause, _, _ := strings.Cut(m.Reason, " order-")
			all[cause+", "+m.State.String()]++
		}
	}
}

// Of a group, only its messages are counted and changed: with pages that have none of
// them, with a limit, at a rate, and if reasons are sealed. One whose reason has changed
// since, and one that joined the group since, are left.
func TestOnlyMessagesThatAreAlikeAreChanged(t *testing.T) {
	ring, err := once.NewRing(once.Secret{ID: "a", Bytes: bytes.Repeat([]byte("k"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	sealed := &memstore.Options{}
	sealed.Sealing.Ring = ring
	for name, o := range map[string]*memstore.Options{"plain": nil, "sealed": sealed} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New(o)
			sealing := &s.Options().Sealing
			failed(t, s, sealing, 9, "no such customer", "timed out", store.UnknownOutcome+"timed out")
			if m := shelved(t, s, "m0"); strings.HasPrefix(m.Reason, "sealed:") != (o != nil) {
				t.Fatalf("the reason is stored as %q", m.Reason)
			}
			c := counted.Messages{Alike: groupOf("timed out order-1")}
			admin, dry := inbox.Admin{Store: c.Shelf(s)}, by
			dry.DryRun = true
			if tally, err := admin.Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, dry); tally != (inbox.Tally{Matched: 3, Changed: 3}) || err != nil {
				t.Fatal(tally, err)
			}
			if text, ok := c.Failure(); text != "timed out …" || !ok {
				t.Errorf("the group is %q, %v", text, ok)
			}
			for id, reason := range map[string]string{"m1": "no such customer order-1", "m0": "timed out order-0"} {
				m := shelved(t, s, id)
				m.Reason = reason
				if err := s.Change(t.Context(), store.SealReason(sealing, m)); err != nil {
					t.Fatal(err)
				}
			}
			c.Begin()
			if tally, err := admin.Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, by); tally.Changed != 2 || err != nil {
				t.Error(tally, err)
			}
			want := map[string]int{"no such customer, parked": 3, "timed out, parked": 1, "timed out, discarded": 2, store.UnknownOutcome + "timed out, parked": 3}
			if got := tallies(t, s); !maps.Equal(got, want) {
				t.Errorf("the shelf has %v, want %v", got, want)
			}
		})
	}
}

// An ID has 64 bits, so that a quarter of an hour of computing finds two texts with the
// same one. Messages of both are not taken for alike: people see one text.
func TestReasonsWithOneIDAreNotAlike(t *testing.T) {
	one, other := "no such customer oaoopioekaepjdkh", "the bank is down focdbcjbfgghbmia"
	if groupOf(one) != groupOf(other) {
		t.Fatal("they have two IDs")
	}
	s := memstore.New(nil)
	for i, reason := range []string{one, other, one, other} {
		err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked, Reason: reason, Message: broker.Message{ID: fmt.Sprint("m", i), Topic: "orders"}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := counted.Messages{Alike: groupOf(one)}
	for _, d := range []bool{true, false} {
		decision := by
		decision.DryRun = d
		if tally, err := (inbox.Admin{Store: c.Shelf(s)}).Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, decision); tally.Changed != 2 || err != nil {
			t.Error(tally, err)
		}
		c.Begin()
	}
	if text, _ := c.Failure(); text != alike.Text(one) {
		t.Errorf("people are asked about %q", text)
	}
	if got, want := tallies(t, s), map[string]int{one + ", discarded": 2, other + ", parked": 2}; !maps.Equal(got, want) {
		t.Errorf("the shelf has %v, want %v", got, want)
	}
}

func shelved(t *testing.T, s store.Shelf, id string) store.Shelved {
	t.Helper()
	ms, err := s.Shelved(t.Context(), store.ShelfQuery{IDs: []string{id}})
	if len(ms) != 1 || err != nil {
		t.Fatal(ms, err)
	}
	return ms[0]
}

// A page of the store without a message of the group is not the end of it, and a limit
// is about the group.
func TestAGroupIsFoundAfterPagesWithoutIt(t *testing.T) {
	s := memstore.New(nil)
	failed(t, s, &s.Options().Sealing, 1500, "no such customer")
	for i := range 5 {
		err := s.Shelve(t.Context(), []store.Shelved{{Consumer: "billing", State: store.Parked, Reason: "timed out", Message: broker.Message{ID: fmt.Sprint("t", i), Topic: "orders"}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{2, 0} {
		c := counted.Messages{Alike: groupOf("timed out")}
		reads := &reader{AdminStore: s}
		admin, dry := inbox.Admin{Store: c.Shelf(reads)}, by
		dry.DryRun = true
		q := store.ShelfQuery{Limit: limit}
		want := limit
		if limit == 0 {
			want = 3
		}
		if tally, err := admin.Replay(t.Context(), q, dry); tally.Matched != want || err != nil {
			t.Fatal(tally, err)
		}
		c.Next = func(context.Context, int) (int, error) { return 1, nil }
		c.Begin()
		if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, by); tally.Changed != want || err != nil {
			t.Error(tally, err)
		}
		if reads.n > 16 {
			t.Errorf("%d reads with the limit %d", reads.n, limit)
		}
	}
	if got, want := tallies(t, s), map[string]int{"no such customer, parked": 1500, "timed out, waiting": 5}; !maps.Equal(got, want) {
		t.Errorf("the shelf has %v, want %v", got, want)
	}
	c := counted.Messages{Alike: groupOf("timed out")}
	dry := by
	dry.DryRun = true
	if tally, err := (inbox.Admin{Store: c.Shelf(s)}).Replay(t.Context(), store.ShelfQuery{}, dry); tally.Matched != 0 || err != nil {
		t.Error(tally, err)
	}
	if _, ok := c.Failure(); ok {
		t.Error("a group without messages has a text")
	}
}

// A count can be ended between two pages, and not where it ends anyway.
func TestACountCanBeEnded(t *testing.T) {
	s := memstore.New(nil)
	failed(t, s, &s.Options().Sealing, 1500, "no such customer", "timed out")
	dry := by
	dry.DryRun = true
	for name, test := range map[string]struct {
		c           counted.Messages
		asked, want int
	}{
		"all":            {counted.Messages{}, 1, 1000},
		"a group":        {counted.Messages{Alike: groupOf("timed out order-1")}, 1, 500},
		"an empty group": {counted.Messages{Alike: groupOf("too large")}, 1, 0},
	} {
		asked := 0
		test.c.Enough = func() bool { asked++; return true }
		if tally, err := (inbox.Admin{Store: test.c.Shelf(s)}).Replay(t.Context(), store.ShelfQuery{}, dry); tally.Matched != test.want || asked != test.asked || err != nil {
			t.Errorf("%s: %d matched, Enough was asked %d times: %v", name, tally.Matched, asked, err)
		}
	}
	few := memstore.New(nil)
	failed(t, few, &few.Options().Sealing, 999, "timed out")
	c := counted.Messages{Enough: func() bool { t.Error("it was asked after the last message"); return true }}
	if tally, err := (inbox.Admin{Store: c.Shelf(few)}).Replay(t.Context(), store.ShelfQuery{}, dry); tally.Matched != 999 || err != nil {
		t.Error(tally, err)
	}
}

// The outbox too. Two messages of it may have the same number, time of change and
// attempts: what is not of the group is left even then.
func TestOnlyMessagesOfTheOutboxThatAreAlikeAreChanged(t *testing.T) {
	s := &listed{Relayable: memstore.New(nil)}
	at := time.Unix(1, 0)
	for i, reason := range []string{"no such topic 1", "too large: 7 MB", "no such topic 2", "too large: 9 MB"} {
		s.ms = append(s.ms, store.Outgoing{Seq: int64(i/2 + 1), State: store.Stuck, Changed: at, Reason: reason, Message: broker.Message{ID: fmt.Sprint("m", i)}})
	}
	c := counted.Messages{Alike: groupOf("no such topic 3")}
	admin, decision := outbox.Admin{Store: c.Outbox(s)}, outbox.Decision{By: "ana", Reason: "r", DryRun: true}
	if tally, err := admin.Replay(t.Context(), store.OutgoingQuery{}, decision); tally.Matched != 2 || err != nil {
		t.Fatal(tally, err)
	}
	c.Begin()
	decision.DryRun = false
	if tally, err := admin.Replay(t.Context(), store.OutgoingQuery{}, decision); tally.Changed != 2 || err != nil {
		t.Error(tally, err)
	}
	if want := []string{"m0", "m2"}; !slices.Equal(s.moved, want) {
		t.Errorf("%v were changed, want %v", s.moved, want)
	}
}

// Each lane of an outbox may have the same number: a message that was put after the
// count, in another lane, is none of those that were counted.
func TestAMessageOfAnotherLaneIsNotTakenForACountedOne(t *testing.T) {
	put := func(id string, lane int) store.Outgoing {
		return store.Outgoing{Seq: 7, Lane: lane, Message: broker.Message{ID: id}}
	}
	s := &listed{Relayable: memstore.New(nil), ms: []store.Outgoing{put("counted", 0)}}
	var c counted.Messages
	admin, decision := outbox.Admin{Store: c.Outbox(s)}, outbox.Decision{By: "ana", Reason: "r", DryRun: true}
	if tally, err := admin.Park(t.Context(), store.OutgoingQuery{}, decision); tally.Matched != 1 || err != nil {
		t.Fatal(tally, err)
	}
	s.ms = append(s.ms, put("new", 1))
	c.Begin()
	decision.DryRun = false
	if tally, err := admin.Park(t.Context(), store.OutgoingQuery{}, decision); tally.Changed != 1 || err != nil {
		t.Error(tally, err)
	}
	if want := []string{"counted"}; !slices.Equal(s.moved, want) {
		t.Errorf("%v were changed, want %v", s.moved, want)
	}
}

// listed is an outbox with some messages.
type listed struct {
	store.Relayable
	ms    []store.Outgoing
	moved []string
}

func (l *listed) Outgoing(_ context.Context, q store.OutgoingQuery) (page []store.Outgoing, err error) {
	for _, m := range l.ms {
		if m.Seq > q.After {
			page = append(page, m)
		}
	}
	return page, nil
}

func (l *listed) MoveOutgoing(_ context.Context, _ [16]byte, ms []store.Outgoing, _ store.OutgoingState) (int, error) {
	for _, m := range ms {
		l.moved = append(l.moved, m.Message.ID)
	}
	return len(ms), nil
}
