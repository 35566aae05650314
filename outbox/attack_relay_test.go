//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Two relays of two outboxes (two brokers) share Stats. The broker of one is down, the other one works: messages are
// blamed for the broker that is down, and stuck in the end.
func TestSharedStatsBlameMessagesForABrokerThatIsDown(t *testing.T) {
	inBubble(t, func(b *bench) {
		other := newBench(b.T)
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		r, works := b.relay(), other.relay()
		works.Stats = r.Stats
		b.put(some(20, "a", "")...)
		stop, stopOther := b.run(r), other.run(works)
		for i := range 60 * 60 {
			other.put(message(fmt.Sprint("other", i), ""))
			time.Sleep(time.Second)
		}
		if held, stuck := len(b.rows(store.Held)), len(b.rows(store.Stuck)); held+stuck > 0 {
			b.Errorf("in an hour without a broker, %d messages were held and %d are stuck, want none", held, stuck)
		}
		stop()
		stopOther()
	})
}

// A topic that does not exist has more messages at the front of each lane than a chunk has room for.
func TestABadTopicThatFillsTheChunkHoldsUpEverything(t *testing.T) {
	inBubble(t, func(b *bench) {
		bad := some(16*300, "bad", "") // a chunk is 20 * Batch = 200; with the default Batch it is 10,000
		for _, m := range bad {
			m.Topic = "misspelt"
		}
		b.put(bad...)
		b.put(some(100, "good", "")...)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.Topic == "misspelt" {
				return errors.New("no such topic")
			}
			return nil
		})
		r := b.relay()
		r.Batch = 10
		stop := b.run(r)
		time.Sleep(5 * time.Minute)
		if n := len(b.sender.taken()); n != 100 {
			b.Errorf("%d of 100 good messages are out after five minutes", n)
		}
		stop()
	})
}

// lostMove is a store that does one MoveOutgoing, and loses the reply.
type lostMove struct {
	store.Relayable
	lose *atomic.Bool
}

func (s lostMove) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	n, err := s.Relayable.MoveOutgoing(ctx, relay, ms, to)
	if s.lose.CompareAndSwap(true, false) {
		return 0, errors.New("the reply was lost")
	}
	return n, err
}

// The reply to the MoveOutgoing of a head that failed is lost: the relay does not know that its key is held.
func TestALostReplyToAMoveReordersAKey(t *testing.T) {
	for _, name := range []string{"held", "stuck"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				var lose, mended atomic.Bool
				lose.Store(true)
				b.sender.set(nil, func(m *broker.Message) error {
					switch {
					case m.ID != "k0000" || mended.Load():
						return nil
					case name == "stuck":
						return fmt.Errorf("%w: too large", broker.ErrInvalid)
					}
					return errors.New("cannot be taken")
				})
				r := b.relay()
				r.Store = lostMove{b.store, &lose}
				b.put(append(some(5, "k", "key"), some(5, "a", "")...)...)
				stop := b.run(r)
				time.Sleep(time.Second)
				b.put(message("z", "")) // the broker works
				time.Sleep(time.Minute)
				for _, id := range b.sender.taken() {
					if strings.HasPrefix(id, "k") {
						b.Errorf("%s went out, and k0000 has not", id)
					}
				}
				stop()
			})
		})
	}
}

// A person parks a message that waits behind another of its key: the one in front of it is never tried again.
func TestAStuckMessageHoldsUpTheOneInFrontOfIt(t *testing.T) {
	inBubble(t, func(b *bench) {
		var down atomic.Bool
		down.Store(true)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" && down.Load() {
				return errors.New("cannot be taken now")
			}
			return nil
		})
		b.put(append(some(3, "k", "key"), some(5, "a", "")...)...)
		stop := b.run(b.relay())
		b.until("the others are out", func() bool { return len(b.sender.taken()) == 5 })
		b.put(message("z", ""))
		b.until("the key is held", func() bool { return len(b.rows(store.Held)) == 3 })
		_, err := outbox.Admin{Store: b.store}.Park(b.Context(), store.OutgoingQuery{State: store.Held, IDs: []string{"k0002"}},
			outbox.Decision{By: "me", Reason: "wrong prices"})
		b.must(err)
		time.Sleep(10 * time.Second)
		down.Store(false)
		time.Sleep(6 * time.Hour)
		taken := b.sender.taken()
		if !slices.Contains(taken, "k0000") || !slices.Contains(taken, "k0001") {
			b.Errorf("what is in front of the parked message is not out after six hours: %q", taken)
		}
		stop()
	})
}

// The same without a person: in a batch with Overtaking, one of a key does not get through, and one behind it is ErrInvalid.
func TestAnInvalidMessageHoldsUpTheOneInFrontOfIt(t *testing.T) {
	inBubble(t, func(b *bench) {
		begun := time.Now()
		b.sender.set(nil, func(m *broker.Message) error {
			switch {
			case m.ID == "k0000" && time.Since(begun) < time.Minute:
				return errors.New("cannot be taken now")
			case m.ID == "k0001":
				return fmt.Errorf("%w: too large", broker.ErrInvalid)
			}
			return nil
		})
		b.put(append(some(2, "k", "key"), some(5, "a", "")...)...)
		r := b.relay()
		r.Overtaking = true
		stop := b.run(r)
		// It panics as soon as all of a chunk is held (TestOvertakingPanicsOnAChunkThatIsHeld): mend that first.
		for i := range 60 {
			b.put(message(fmt.Sprint("z", i), "")) // the broker works
			time.Sleep(time.Minute)
		}
		if !slices.Contains(b.sender.taken(), "k0000") {
			b.Error("k0000 is not out after an hour, which is in front of what is stuck")
		}
		stop()
	})
}

// With Overtaking, a chunk of which everything is held is empty, and the queue of it has one run with nothing in it.
func TestOvertakingPanicsOnAChunkThatIsHeld(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" {
				return fmt.Errorf("%w: too large", broker.ErrInvalid)
			}
			return nil
		})
		r := b.relay()
		r.Overtaking = true
		b.put(message("k0000", "key"))
		stop := b.run(r)
		time.Sleep(time.Second)
		b.put(message("k0001", "key")) // which is behind what is stuck
		time.Sleep(time.Second)
		stop()
		if held := b.rows(store.Held); len(held) != 1 {
			b.Errorf("held: %q", held)
		}
	})
}

// A decision goes through pages, each behind the Seq of the last row of the one before: also over several lanes.
func TestADecisionOnLanesSkipsNothing(t *testing.T) {
	b := newBench(t)
	b.put(some(1200, "a", "")...)
	q := store.OutgoingQuery{State: store.Pending}
	for lane := range store.Lanes {
		q.Lanes = append(q.Lanes, lane)
	}
	got, err := outbox.Admin{Store: b.store}.Park(t.Context(), q, outbox.Decision{By: "me", Reason: "wrong prices"})
	b.must(err)
	if got.Matched != 1200 || got.Changed != 1200 {
		t.Errorf("of 1200 messages in all lanes: %+v", got)
	}
}

// replaying is a store in which a person replays what is Stuck just before it is asked for.
type replaying struct {
	store.Relayable
	armed *atomic.Bool
}

func (s replaying) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if q.State == store.Stuck && s.armed.CompareAndSwap(true, false) {
		_, err := outbox.Admin{Store: s.Relayable}.Replay(ctx, store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
		if err != nil {
			return nil, err
		}
	}
	return s.Relayable.Outgoing(ctx, q)
}

// A relay learns what is held, then what is stuck. A message that is replayed in between is in neither answer.
func TestAReplayBetweenTwoLooksReordersAKey(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.put(some(1, "k", "key")...)
		_, err := outbox.Admin{Store: b.store}.Park(b.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "wait"})
		b.must(err)
		b.put(message("k0001", "key"))
		var armed atomic.Bool
		armed.Store(true)
		r := b.relay()
		r.Store = replaying{b.store, &armed}
		stop := b.run(r) // it has just got the lanes
		b.until("both are out", func() bool { return len(b.sender.taken()) == 2 })
		stop()
		b.wantOrder("key")
	})
}

// leasing ends a context as soon as lanes were leased.
type leasing struct {
	store.Relayable
	leased func()
}

func (s leasing) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	leases, err := s.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
	if len(lanes) > 0 {
		s.leased()
	}
	return leases, err
}

// Run returns nil "when the lanes are free for others".
func TestAStopAtTheStartKeepsTheLanes(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(b.Context())
		r := b.relay()
		r.Store = leasing{b.store, cancel}
		b.must(r.Run(ctx))
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{1}, time.Hour, nil)
		b.must(err)
		if leases.Relays != 1 || leases.Lanes[0].Relay != ([16]byte{}) {
			b.Errorf("the relay has ended, and there are %d relays, and lane 0 is that of %x", leases.Relays, leases.Lanes[0].Relay)
		}
	})
}

// unhurried is a publisher that takes ten milliseconds: without it, this test would spin for ever at one moment.
type unhurried struct{ *sender }

func (u unhurried) Publish(ctx context.Context, ms []*broker.Message) []error {
	time.Sleep(10 * time.Millisecond)
	return u.sender.Publish(ctx, ms)
}

// deaf is a publisher that ignores its context.
type deaf struct{ never chan struct{} }

func (d deaf) Publish(context.Context, []*broker.Message) []error {
	<-d.never
	return nil
}

func (d deaf) Close() error { return nil }

// A publisher that never returns keeps its lanes for ever: the leases are renewed beside it.
func TestAPublisherThatHangsKeepsItsLanes(t *testing.T) {
	inBubble(t, func(b *bench) {
		r, d := b.relay(), deaf{make(chan struct{})}
		r.Publisher = d
		b.put(some(100, "a", "")...)
		stop := b.run(r)
		time.Sleep(10 * time.Second)
		other := b.run(b.relay())
		time.Sleep(24 * time.Hour)
		if n := len(b.sender.taken()); n < 100 {
			b.Errorf("a day later, %d of 100 messages are out, though there is a relay whose publisher works", n)
		}
		close(d.never)
		stop()
		other()
	})
}

// crowd is a store with many messages that are held, without an ordering key.
type crowd struct {
	store.Relayable
	held int
	read atomic.Int64
}

func (s *crowd) Outgoing(ctx context.Context, q store.OutgoingQuery) (page []store.Outgoing, err error) {
	if q.State != store.Held {
		return s.Relayable.Outgoing(ctx, q)
	}
	for seq := q.After + 1; seq <= int64(s.held) && len(page) < q.Limit; seq++ {
		page = append(page, store.Outgoing{Message: broker.Message{ID: "held", Topic: "misspelt"}, Lane: int(seq) % 16, Seq: seq,
			State: store.Held, Attempts: 9})
	}
	s.read.Add(int64(len(page)))
	return page, nil
}

// A million messages went to a topic that does not exist, and were put aside. All of their heads are read every five
// seconds, and each is remembered.
func TestHeldMessagesAreReadAgainAndAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := &crowd{Relayable: b.store, held: 20_000}
		r := b.relay()
		r.Store = s
		r.Retry.First, r.Retry.Limit = time.Hour, time.Hour // nothing is tried in this test
		stop := b.run(r)
		time.Sleep(2 * time.Minute)
		stop()
		if n := s.read.Load(); n > 5*int64(s.held) {
			b.Errorf("%d rows were read in two minutes, of %d that wait", n, s.held)
		}
	})
}

// The clock of the database jumps, or a lease is lost in another way: for some seconds the relay believes that lanes are
// its own, which are another's. That costs one copy of a message, not one for each look.
func TestALostLaneIsPublishedAgainAndAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Publisher = unhurried{b.sender}
		stop := b.run(r)
		time.Sleep(3 * time.Second)
		all := make([]int, store.Lanes)
		for i := range all {
			all[i] = i
		}
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{3}, time.Hour, nil)
		b.must(err)
		b.must(b.store.ReleaseLanes(b.Context(), leases.Lanes[0].Relay, nil)) // they have lapsed
		_, err = b.store.LeaseLanes(b.Context(), [16]byte{3}, time.Hour, all)
		b.must(err)
		b.put(some(100, "a", "")...)
		time.Sleep(time.Minute)
		stop()
		if n := len(b.sender.taken()); n > 200 {
			b.Errorf("100 messages were published %d times, until the relay knew that it has lost their lanes", n)
		}
	})
}

// acting is a publisher that lets a test act during a call.
type acting struct {
	*sender
	during func(ms []*broker.Message)
}

func (a acting) Publish(ctx context.Context, ms []*broker.Message) []error {
	a.during(ms)
	return a.sender.Publish(ctx, ms)
}

// A head fails in its batch and is not sent again alone, because its lane is to be given up. Nothing notes that its key
// has failed: the lane may stay after all, and then the next of the key goes out in the same round.
func TestALaneThatIsNotGivenUpAfterAllReordersAKey(t *testing.T) {
	inBubble(t, func(b *bench) {
		key := keyIn(func(lane int) bool { return lane >= 8 }, "key", 0)
		second, step := [16]byte{2}, 0
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" && step == 1 {
				return errors.New("not now")
			}
			return nil
		})
		r := b.relay()
		r.Batch = 4
		r.Publisher = acting{b.sender, func(ms []*broker.Message) {
			switch {
			case step == 0 && slices.Contains(ids(ms), "k0000"):
				step = 1
				if _, err := b.store.LeaseLanes(b.Context(), second, time.Hour, nil); err != nil { // each has 8 lanes to have
					b.Error(err)
				}
				time.Sleep(6 * time.Second)
			case step == 1:
				step = 2
				if err := b.store.ReleaseLanes(b.Context(), second, nil); err != nil { // and leaves
					b.Error(err)
				}
				time.Sleep(6 * time.Second)
			}
		}}
		var all []*broker.Message
		all = append(all, some(5, "k", key)...)
		for i := range 10 {
			all = append(all, some(20, fmt.Sprint("other", i, "-"), keyIn(func(lane int) bool { return lane < 8 }, "other", 1000*i))...)
		}
		b.put(all...)
		stop := b.run(r)
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		stop()
		b.wantAll(all)
		b.wantOrder(key)
	})
}

// keyIn is an ordering key in a lane of some kind.
func keyIn(wanted func(lane int) bool, prefix string, from int) string {
	for i := from; ; i++ {
		m := broker.Message{OrderingKey: fmt.Sprint(prefix, i)}
		if wanted(store.Lane(&m)) {
			return m.OrderingKey
		}
	}
}
