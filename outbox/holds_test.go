//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// lostMove is a store that loses the reply to one MoveOutgoing.
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

// The reply to the MoveOutgoing of a failed message is lost. Later messages of
// its key still wait.
func TestALostReplyToAMoveKeepsTheOrderOfItsKey(t *testing.T) {
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

// A person parks a message that waits for another one of its key. The other one
// is still retried.
func TestAStuckMessageDoesNotHoldUpTheOneInFrontOfIt(t *testing.T) {
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

// With Overtaking, a batch has a message that fails and a later one of its key
// that is ErrInvalid. The first one is still retried.
func TestAnInvalidMessageDoesNotHoldUpTheOneInFrontOfIt(t *testing.T) {
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

// With Overtaking, the relay passes a chunk in which all messages are held.
func TestOvertakingPassesAChunkThatIsHeld(t *testing.T) {
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

// replaying is a store in which a person replays the Stuck messages just before
// they are read.
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

// A relay reads the Held messages, then the Stuck ones. A message that is
// replayed in between is in neither answer, but is published before later ones.
func TestAReplayBetweenTwoLooksKeepsTheOrderOfItsKey(t *testing.T) {
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

// replayedLate is a store in which a person replays the Stuck messages just after
// a relay has read the Held ones of a key.
type replayedLate struct {
	store.Relayable
	armed *atomic.Bool
}

func (s replayedLate) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	ms, err := s.Relayable.Outgoing(ctx, q)
	if err == nil && q.State == store.Held && q.OrderingKey != "" && s.armed.CompareAndSwap(true, false) {
		_, err = outbox.Admin{Store: s.Relayable}.Replay(ctx, store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
	}
	return ms, err
}

// A person parks the first of the messages that are Held, and replays it before the
// relay has learned that. It was not Held when these were read, and no longer Stuck
// when the relay looked, but is published before them.
func TestAReplayBesideARetryKeepsTheOrderOfItsKey(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(nil, func(m *broker.Message) error {
			if m.OrderingKey == "key" {
				return errors.New("cannot be taken now")
			}
			return nil
		})
		b.put(append(some(2, "k", "key"), message("a", ""))...)
		r := b.relay()
		var armed atomic.Bool
		r.Store = replayedLate{b.store, &armed}
		stop := b.run(r)
		b.until("another message is out", func() bool { return len(b.sender.taken()) == 1 })
		b.put(message("z", ""))
		b.until("the key is held", func() bool { return len(b.rows(store.Held)) == 2 })
		b.sender.set(nil, nil)
		b.park(store.Held, "k0000")
		armed.Store(true)
		b.until("both are out", func() bool { return len(b.sender.taken()) == 4 })
		stop()
		b.wantOrder("key")
	})
}

// A person parks a message after a backlog and replays it. Earlier ones of its key
// are still Pending, in chunks that are not read yet, and are published first.
func TestAReplayInABacklogKeepsTheOrderOfItsKey(t *testing.T) {
	inBubble(t, func(b *bench) {
		all := slices.Concat(some(100, "a", ""), some(30, "k", "key"))
		b.put(all...)
		b.park(store.Pending, "k0012")
		b.park(store.Pending, "k0027")
		b.replay()
		r := b.relay()
		r.Batch = 2 // the earlier ones become Held in several steps
		stop := b.run(r)
		b.until("all are out", func() bool { return len(b.sender.taken()) == len(all) })
		stop()
		b.wantAll(all)
		b.wantOrder("key")
	})
}

// during is a publisher that does something in the call with a message.
type during struct {
	*sender
	id string
	do func()
}

func (p during) Publish(ctx context.Context, ms []*broker.Message) []error {
	if ms[0].ID == p.id {
		p.do()
	}
	return p.sender.Publish(ctx, ms)
}

// While a chunk is published, a person parks a message that was put after it, and
// replays it. The ones of its key that are in the chunk fail once. They are still
// published first.
func TestAReplayBesideAChunkKeepsTheOrderOfItsKey(t *testing.T) {
	inBubble(t, func(b *bench) {
		var failed atomic.Bool
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" && failed.CompareAndSwap(false, true) {
				return errors.New("cannot be taken now")
			}
			return nil
		})
		ms := some(3, "k", "key")
		b.put(append([]*broker.Message{message("a", "")}, ms[:2]...)...)
		r := b.relay()
		r.Batch = 1
		r.Publisher = during{b.sender, "a", func() {
			b.put(ms[2])
			b.park(store.Pending, "k0002")
			b.replay()
			time.Sleep(time.Second) // so that the relay looks again in this chunk
		}}
		stop := b.run(r)
		b.until("all are out", func() bool { return len(b.sender.taken()) == 4 })
		stop()
		b.wantOrder("key")
	})
}

// logged is a store whose Pending rows are published from a log that another relay
// reads.
type logged struct{ store.Relayable }

func (s logged) LogsRows() bool { return true }

func (s logged) TailOutbox(context.Context) (store.OutboxTail, error) { return nil, once.ErrConflict }

func (s logged) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if q.Unlogged {
		return nil, nil
	}
	return s.Relayable.Outgoing(ctx, q)
}

// A message is replayed while the rows are published from the log. It waits for
// the earlier Pending ones of its key, which are left to the reader of the log.
func TestAReplayWaitsForTheReaderOfTheLog(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.put(some(2, "k", "key")...)
		b.park(store.Pending, "k0001")
		b.replay()
		r := b.relay()
		r.Store = logged{b.store}
		stop := b.run(r)
		time.Sleep(time.Minute)
		if got, waits := b.sender.taken(), b.rows(store.Pending); len(got) != 0 || len(waits) != 1 {
			b.Errorf("published %q, and left %q to the reader of the log", got, waits)
		}
		ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Pending})
		b.must(err)
		_, err = b.store.Sent(b.Context(), [16]byte{}, ms, store.Delete)
		b.must(err)
		b.until("the other is out", func() bool { return len(b.sender.taken()) > 0 })
		if got := b.sender.taken(); len(got) != 1 || got[0] != "k0001" {
			b.Errorf("published %q after the reader of the log was done, want k0001", got)
		}
		stop()
	})
}

// crowd is a store with many held messages without an ordering key.
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

// A million messages of a missing topic are held. They are read a few times in
// two minutes, not every five seconds.
func TestHeldMessagesAreReadRarely(t *testing.T) {
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

// Messages that are held when a relay ends are held by the next one.
func TestHeldMessagesStayBehindTheirHead(t *testing.T) {
	inBubble(t, func(b *bench) {
		poisons["alone"](b.sender, "k0000")
		b.put(append(some(5, "k", "key"), some(5, "a", "")...)...)
		stop := b.run(b.relay())
		b.until("the others are out", func() bool { return len(b.sender.taken()) == 5 })
		b.put(message("z", "")) // the broker works
		b.until("the key is held", func() bool { return len(b.rows(store.Held)) > 0 && len(b.sender.taken()) == 6 })
		stop()
		b.put(message("k0005", "key"))
		stop = b.run(b.relay())
		time.Sleep(10 * time.Second)
		if n := len(b.sender.taken()); n != 6 {
			b.Errorf("%q are out", b.sender.taken())
		}
		b.sender.set(nil, nil)
		b.until("the key is out", func() bool { return len(b.sender.taken()) == 12 })
		stop()
		b.wantOrder("key")
	})
}

// Messages that cannot be published yet wait for hours, while others pass, and are
// blamed for nothing. When they can be published, they are within seconds, also
// those that another relay has found held.
func TestMessagesThatComeTooEarlyWaitUnblamed(t *testing.T) {
	inBubble(t, func(b *bench) {
		early := append(some(300, "e", ""), some(20, "k", "key")...)
		for _, m := range early {
			m.Topic = "nobody's"
		}
		b.sender.set(nil, func(m *broker.Message) error {
			if m.Topic == "nobody's" {
				return fmt.Errorf("%w: nobody takes it", broker.ErrNotYet)
			}
			return nil
		})
		b.put(early...)
		var good []*broker.Message
		stop, said := b.run(b.relay()), new(strings.Builder)
		for i := range 2 * 60 {
			if i == 60 {
				stop()
				r := b.relay()
				r.Logger = slog.New(slog.NewTextHandler(said, nil))
				stop = b.run(r)
			}
			good = append(good, message(fmt.Sprint("good", i), ""))
			b.put(good[i])
			time.Sleep(time.Minute)
		}
		if n := len(b.rows(store.Stuck)); n > 0 {
			b.Errorf("%d messages are stuck, although nothing is wrong with them", n)
		}
		if n := len(b.rows(store.Held)); n != len(early) {
			b.Errorf("%d messages are held, want %d", n, len(early))
		}
		b.wantAll(good)
		b.sender.set(nil, nil)
		time.Sleep(5 * time.Second)
		b.wantAll(append(good, early...))
		b.wantOrder("key")
		stop()
		if !strings.Contains(said.String(), "nobody takes it") {
			b.Errorf("the log does not say why messages wait: %.300s", said)
		}
	})
}
