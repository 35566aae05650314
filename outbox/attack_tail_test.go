//go:build go1.25

package outbox_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// While nothing gets through, the reader of the log takes in more and more: ten thousand messages, whatever their size.
func TestTheLogIsReadIntoMemoryWhateverMostBytesSays(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		r := b.relay()
		r.Store, r.MaxBytes = log, 16<<20
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		stop := b.run(r)
		body := make([]byte, 1<<20)
		for i := range 500 {
			m := some(500, "a", "")[i]
			m.Body = body
			log.put(m)
			if i%10 == 9 {
				time.Sleep(10 * time.Second)
			}
		}
		time.Sleep(10 * time.Minute)
		log.mu.Lock()
		n := log.reader.next
		log.mu.Unlock()
		if n > 40 {
			b.Errorf("%d MiB of bodies are in memory, and MaxBytes is 16 MiB", n)
		}
		stop()
	})
}

// The first Sent fails, and the reader publishes the rest of its chunk all the same, to publish it again later.
func TestAFailedSentRepeatsTheWholeChunk(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		log.breaks = 20 // the database is away for a moment
		r := b.relay()
		r.Store = log
		log.put(some(10_000, "a", "")...)
		stop := b.run(r)
		b.until("everything is out", func() bool { return log.left() == 0 })
		stop()
		// Each of the twenty failures may repeat the batch that it was about, and the one that was on its way meanwhile.
		seen, limit := make(map[string]int), 0
		for _, id := range b.sender.taken() {
			seen[id]++
		}
		repeated := 0
		for _, n := range seen {
			limit = max(limit, n)
			if n > 1 {
				repeated++
			}
		}
		if repeated > 1000 {
			b.Errorf("%d messages were repeated, up to %d times, because the database was away for a moment", repeated, limit)
		}
	})
}

// tired is a log whose tails answer the first Sent too late.
type tired struct {
	*logStore
	once *atomic.Bool
}

func (s tired) TailOutbox(ctx context.Context) (store.OutboxTail, error) {
	t, err := s.logStore.TailOutbox(ctx)
	if err != nil {
		return nil, err
	}
	return tiredTail{t, s.once}, nil
}

type tiredTail struct {
	store.OutboxTail
	once *atomic.Bool
}

func (t tiredTail) Sent(ctx context.Context, ms []store.Outgoing, then store.Ending) error {
	if t.once.CompareAndSwap(true, false) {
		<-ctx.Done()
		return ctx.Err()
	}
	return t.OutboxTail.Sent(ctx, ms, then)
}

// The error of a context breaks no tail, says the contract: so Sent can be tried again, as it is for rows of the table.
func TestASentThatTimesOutRepeatsMessages(t *testing.T) {
	inBubble(t, func(b *bench) {
		var slow atomic.Bool
		slow.Store(true)
		log := newLogStore(b.store)
		r := b.relay()
		r.Store = tired{log, &slow}
		log.put(some(100, "a", "")...)
		stop := b.run(r)
		b.until("everything is out", func() bool { return log.left() == 0 })
		stop()
		b.wantAll(some(100, "a", ""))
	})
}

// replayingLog is a log in whose table a person replays what is Stuck, just before it is asked for.
type replayingLog struct {
	*logStore
	armed *atomic.Bool
}

func (s replayingLog) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if q.State == store.Stuck && q.OrderingKey != "" && s.armed.CompareAndSwap(true, false) {
		_, err := outbox.Admin{Store: s.logStore}.Replay(ctx, store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
		if err != nil {
			return nil, err
		}
	}
	return s.logStore.Outgoing(ctx, q)
}

// The reader of the log looks for what is Held, then for what is Stuck. What is replayed in between is in neither answer.
func TestAReplayBetweenTwoLooksReordersAKeyOfTheLog(t *testing.T) {
	inBubble(t, func(b *bench) {
		var armed atomic.Bool
		log := newLogStore(b.store)
		r := b.relay()
		r.Store = replayingLog{log, &armed}
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "k0000" {
				return broker.ErrInvalid
			}
			return nil
		})
		stop := b.run(r)
		log.put(message("k0000", "key"))
		b.until("it is stuck", func() bool { return len(b.rows(store.Stuck)) == 1 })
		b.sender.set(nil, nil)
		time.Sleep(7 * time.Second)
		armed.Store(true)
		log.put(message("k0001", "key"))
		time.Sleep(time.Minute)
		stop()
		if got := b.sender.taken(); !slices.Equal(got, []string{"k0000", "k0001"}) {
			b.Errorf("they came as %q", got)
		}
	})
}
