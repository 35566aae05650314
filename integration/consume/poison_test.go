//go:build linux

package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// TestPoisonInTheMiddle: one message of a batch always fails. It alone is
// parked after its attempts, with its reason.
func TestPoisonInTheMiddle(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) {
		const n = 15
		c := s.consumer(m) // which makes the queue
		ms := notes(0, n, note{Kind: plain})
		bad := note{Kind: poison}.message("orders", "bad")
		s.publish(t, slices.Insert(ms, n/2, bad)...)
		run(t, c)
		s.handled(t, n)
		await(t, "it is parked", func() bool { return len(s.shelf(t, store.Parked)) == 1 })
		s.onceEach(t, n)
		all := s.shelf(t)
		if len(all) != 1 || all[0].Message.ID != "bad" || !strings.Contains(all[0].Reason, "poison: it always fails") {
			t.Errorf("on the shelf is %+v", all)
		}
		// A batch is halved to find the message, so one attempt is several
		// calls.
		if calls := tally(t, s.calls)["bad"]; calls < attempts || calls > 4*(attempts+1) {
			t.Errorf("it was tried %d times", calls)
		}
	})
}

// TestPoisonOfAKeyHolds: later messages of its ordering key wait for a parked
// message. Other keys proceed.
func TestPoisonOfAKeyHolds(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) { s.holds(t, m) })
}

// TestPoisonOfAKeyPasses: with Pass, later messages of its ordering key do not
// wait.
func TestPoisonOfAKeyPasses(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) { s.passes(t, m) })
}

// poisoned returns messages of a key, of which the first fails, among messages
// of other keys.
func poisoned() (ms []*broker.Message) {
	for i := range 12 {
		n, id := note{Kind: plain, Ord: "other", Seq: int64(i + 1)}, fmt.Sprint("o", i)
		ms = append(ms, n.message("orders", id))
		switch {
		case i == 2:
			ms = append(ms, note{Kind: poison, Ord: "k", Seq: 1}.message("orders", "bad"))
		case i > 2 && i < 8:
			ms = append(ms, note{Kind: plain, Ord: "k", Seq: int64(i)}.message("orders", fmt.Sprint("k", i)))
		}
	}
	return ms
}

func (s *stand) holds(t *testing.T, m mode) {
	stop := run(t, s.consumer(m))
	s.publish(t, poisoned()...)
	s.handled(t, 12)
	await(t, "five wait behind the parked one", func() bool {
		return len(s.shelf(t, store.Parked)) == 1 && len(s.shelf(t, store.Waiting)) == 5
	})
	s.onceEach(t, 12)
	must(t, stop())

	// The handler is fixed and handles the parked message. Then the others of
	// its key follow, in order.
	mended := s.consumer(m)
	mended.Handler = s.tx(func(_ context.Context, tx rows, m *broker.Message) error {
		n, err := noteOf(m)
		if err == nil {
			_, err = tx.Exec(addEffect, "handled", m.ID, n.Ord, n.Seq, "mended")
		}
		return err
	})
	run(t, mended)
	admin := inbox.Admin{Store: s.store}
	tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "test", Reason: "mended"})
	must(t, err)
	if tally.Changed != 1 {
		t.Errorf("the replay has come to %+v", tally)
	}
	s.handled(t, 18)
	s.onceEach(t, 18)
	s.inOrder(t)
}

func (s *stand) passes(t *testing.T, m mode) {
	c := s.consumer(m)
	c.OnParked = inbox.Pass
	run(t, c)
	s.publish(t, poisoned()...)
	s.handled(t, 17)
	await(t, "it is parked, and nothing waits", func() bool {
		return len(s.shelf(t, store.Parked)) == 1 && len(s.shelf(t, store.Waiting)) == 0
	})
	s.onceEach(t, 17)
	s.inOrder(t)
}

// inOrder checks that the messages of each key were handled in order.
func (w *world) inOrder(t testing.TB) {
	t.Helper()
	last := make(map[string]int64)
	for _, e := range w.effects(t, "handled") {
		if e.ord != "" && e.seq <= last[e.ord] {
			t.Errorf("of %s, number %d was handled after %d", e.ord, e.seq, last[e.ord])
		}
		last[e.ord] = e.seq
	}
}

// TestDeadLettersComeBack: a person puts a dead letter back into the queue,
// twice. It has no effect while the message is parked, and is a duplicate after
// it was handled.
func TestDeadLettersComeBack(t *testing.T) {
	for _, m := range []mode{one, many} {
		t.Run(string(m), func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *stand) {
				c := s.consumer(m)
				stop := run(t, c)
				s.publish(t, note{Kind: poison}.message("orders", "bad"))
				await(t, "it is a dead letter", func() bool { return len(s.broker.Messages("orders.dead")) == 1 })
				failed := c.Stats.Failed.Load()
				s.putBack(t, c, 2)
				if now := c.Stats.Failed.Load(); now != failed {
					t.Errorf("it was tried again while it was parked: it has failed %d times, before it were %d", now, failed)
				}
				must(t, stop())
				s.mendAndReplay(t, m)
			})
		})
	}
}

// putBack puts the dead letter into the queue again, and waits until it is
// recognised.
func (s *stand) putBack(t *testing.T, c *inbox.Consumer, times int) {
	t.Helper()
	letter := s.broker.Messages("orders.dead")[0]
	letter.Topic = "orders"
	before := c.Stats.Duplicates.Load()
	for range times {
		s.publish(t, letter)
	}
	await(t, "it was recognised", func() bool { return c.Stats.Duplicates.Load() == before+int64(times) })
}

func (s *stand) mendAndReplay(t *testing.T, m mode) {
	c := s.consumer(m)
	c.Handler = s.tx(func(_ context.Context, tx rows, m *broker.Message) error {
		_, err := tx.Exec(addEffect, "handled", m.ID, "", 1, "mended")
		return err
	})
	run(t, c)
	by := inbox.Decision{By: "test", Reason: "mended"}
	_, err := inbox.Admin{Store: s.store}.Replay(t.Context(), store.ShelfQuery{}, by)
	must(t, err)
	s.handled(t, 1)
	s.putBack(t, c, 2)
	s.onceEach(t, 1)
}
