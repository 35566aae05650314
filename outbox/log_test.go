//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// logStore is a store whose messages come from a log: a slice, which one reader
// at a time gets.
type logStore struct {
	*memstore.Store

	mu     sync.Mutex
	log    []store.Outgoing
	done   map[uint64]bool // sent, or set aside
	reader *logTail        // nil: nobody
	breaks int             // how many more calls of Sent fail
	few    int             // most messages of one Receive; 0: as many as are asked for
	opened int
	wake   chan struct{}
}

func newLogStore(s *memstore.Store) *logStore {
	return &logStore{Store: s, done: make(map[uint64]bool), wake: make(chan struct{}, 1)}
}

func (s *logStore) LogsRows() bool { return false }

// put commits messages in one transaction.
func (s *logStore) put(ms ...*broker.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := uint64(len(s.log) + len(ms))
	for _, m := range ms {
		place := uint64(len(s.log) + 1)
		s.log = append(s.log, store.Outgoing{Message: *m, Lane: store.Lane(m), LogPlace: place, LogMore: place < end})
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *logStore) TailOutbox(context.Context) (store.OutboxTail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader != nil {
		return nil, fmt.Errorf("%w: somebody reads", once.ErrConflict)
	}
	s.opened++
	s.reader = &logTail{logStore: s}
	for s.reader.next < len(s.log) && s.done[s.log[s.reader.next].LogPlace] { // behind the last of which all before it are done
		s.reader.next++
	}
	return s.reader, nil
}

type logTail struct {
	*logStore
	next   int
	broken bool
}

func (t *logTail) Receive(ctx context.Context, limit int) ([]store.Outgoing, error) {
	if t.few > 0 {
		limit = min(limit, t.few)
	}
	for {
		t.mu.Lock()
		if t.broken {
			t.mu.Unlock()
			return nil, errors.New("the connection was lost")
		}
		ms := slices.Clone(t.log[t.next:min(t.next+limit, len(t.log))])
		t.next += len(ms)
		t.mu.Unlock()
		if len(ms) > 0 {
			return ms, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.wake:
		}
	}
}

func (t *logTail) Sent(_ context.Context, ms []store.Outgoing, _ store.Ending) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.breaks > 0 {
		t.breaks--
		t.broken = true
		return errors.New("the connection was lost")
	}
	for _, m := range ms {
		t.done[m.LogPlace] = true
	}
	return nil
}

func (t *logTail) SetAside(ctx context.Context, ms []store.Outgoing) error {
	tx, put := t.Store.Begin(), slices.Clone(ms)
	for i := range put {
		put[i].Delay = time.Hour // so that no relay takes it before it has its state
	}
	if err := t.PutTx(ctx, tx, put); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	for _, m := range ms { // as the adapter does it in one step
		rows, err := t.Outgoing(ctx, store.OutgoingQuery{State: store.Delayed, IDs: []string{m.Message.ID}})
		if err != nil {
			return err
		}
		rows[0].Attempts, rows[0].Reason = m.Attempts, m.Reason
		if _, err := t.MoveOutgoing(ctx, [16]byte{}, rows, m.State); err != nil {
			return err
		}
		t.mu.Lock()
		t.done[m.LogPlace] = true
		t.mu.Unlock()
	}
	return nil
}

func (t *logTail) Close(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reader = nil
	return nil
}

func (s *logStore) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.log) - len(s.done)
}

func TestEachMessageOfTheLogGoesOutOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		r := b.relay()
		r.Store = log
		stop, other := b.run(r), b.run(r)
		var all []*broker.Message
		for i := range 20 {
			ms := append(some(30, fmt.Sprintf("a%02d", i), ""), some(10, fmt.Sprintf("k%02d", i), "key")...)
			log.put(ms...)
			all = append(all, ms...)
			if i == 10 {
				stop()
			}
			time.Sleep(100 * time.Millisecond)
		}
		b.until("everything is out", func() bool { return log.left() == 0 })
		other()
		b.wantAll(all)
		b.wantOrder("key")
	})
}

// The log is confirmed up to the end of a transaction. A relay that stops has
// published all messages before its last published one, and the rest of that
// transaction.
func TestStoppingSendsNothingTwice(t *testing.T) {
	for _, few := range []int{1, 3, 7, 0} {
		for calls := range 12 {
			t.Run(fmt.Sprintf("%d at once, after %d calls", few, calls), func(t *testing.T) {
				inBubble(t, func(b *bench) {
					log := newLogStore(b.store)
					log.few = few
					var all []*broker.Message
					for i := range 6 {
						ms := append(some(i, fmt.Sprintf("k%d", i), "key"), some(4, fmt.Sprintf("a%d", i), "")...)
						ms = append(ms, some(3, fmt.Sprintf("m%d", i), "key")...)
						log.put(ms...)
						all = append(all, ms...)
					}
					r := b.relay()
					r.Store, r.Batch = log, 3
					b.sender.gate = make(chan struct{})
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan error)
					go func() { ended <- r.Run(ctx) }()
					for range calls {
						b.sender.gate <- struct{}{}
					}
					synctest.Wait()
					cancel()
					close(b.sender.gate)
					b.must(<-ended)
					if few > 0 && len(b.sender.taken()) == len(all) {
						b.Error("it went on to the end")
					}
					stop := b.run(r)
					b.until("everything is out", func() bool { return log.left() == 0 })
					stop()
					b.wantAll(all)
				})
			})
		}
	}
}

// A relay is stopped while the broker refuses all messages. It has received
// more of a transaction that is published in part.
func TestStoppingWhileTheBrokerTakesNothing(t *testing.T) {
	for _, after := range []time.Duration{10 * time.Millisecond, 150 * time.Millisecond, time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(b *bench) {
				log := newLogStore(b.store)
				log.few = 2
				r := b.relay()
				r.Store = log
				calls := 0
				b.sender.set(func([]*broker.Message) error {
					if calls++; calls > 1 {
						return errors.New("busy")
					}
					return nil
				}, nil)
				all := some(12, "k", "key")
				log.put(all[:8]...)
				log.put(all[8:]...)
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error)
				go func() { ended <- r.Run(ctx) }()
				time.Sleep(after)
				b.sender.set(nil, nil)
				cancel()
				b.must(<-ended)
				stop := b.run(r)
				b.until("everything is out", func() bool { return log.left() == 0 })
				stop()
				b.wantAll(all)
				b.wantOrder("key")
			})
		})
	}
}

func TestABrokenTailIsOpenedAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		log.breaks = 2
		r := b.relay()
		r.Store = log
		stop := b.run(r)
		log.put(some(100, "a", "")...)
		b.until("everything is out", func() bool { return log.left() == 0 })
		stop()
		if log.opened != 3 {
			b.Errorf("the tail was opened %d times, want 3", log.opened)
		}
		for _, m := range some(100, "a", "") {
			if !slices.Contains(b.sender.taken(), m.ID) {
				b.Errorf("%s is missing", m.ID)
			}
		}
	})
}

// A message that fails goes to the table, with later ones of its key, and is
// published from there.
func TestPoisonInTheLogGoesToTheTable(t *testing.T) {
	for name, poison := range poisons {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				log := newLogStore(b.store)
				r := b.relay()
				r.Store = log
				stop := b.run(r)
				poison(b.sender, "k0002")
				log.put(some(5, "k", "key")...)
				log.put(some(300, "a", "")...)
				b.until("the others are out", func() bool { return len(b.sender.taken()) == 302 })
				log.put(message("z", "")) // the broker works
				b.until("the log is empty", func() bool { return log.left() == 0 })
				if n := len(b.sender.taken()); n != 303 {
					b.Errorf("%d are out, want 303", n)
				}
				log.put(message("k0005", "key"))
				b.until("it is set aside", func() bool { return len(b.rows(store.Held)) == 4 })
				b.sender.set(nil, nil)
				b.until("the key is out", func() bool { return len(b.rows(store.Held)) == 0 })
				log.put(message("k0006", "key"))
				b.until("the key flows again", func() bool { return log.left() == 0 && len(b.sender.taken()) == 308 })
				stop()
				b.wantOrder("key")
			})
		})
	}
}

func TestABrokerThatIsDownKeepsTheLog(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		r := b.relay()
		r.Store = log
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		stop := b.run(r)
		log.put(some(100, "a", "")...)
		time.Sleep(time.Hour)
		log.put(some(100, "b", "")...)
		time.Sleep(time.Hour)
		if n := len(b.rows(store.Held)) + len(b.rows(store.Stuck)); n > 0 || log.left() != 200 {
			b.Errorf("%d are in the table, and %d in the log, want none and 200", n, log.left())
		}
		b.sender.set(nil, nil)
		b.until("everything is out", func() bool { return log.left() == 0 })
		stop()
		b.wantAll(append(some(100, "a", ""), some(100, "b", "")...))
	})
}

// A message that fails is blamed as soon as others get through.
func TestAMessageIsNotBlamedBeforeOthersGetThrough(t *testing.T) {
	inBubble(t, func(b *bench) {
		log := newLogStore(b.store)
		r := b.relay()
		r.Store = log
		poisons["alone"](b.sender, "a0000")
		stop := b.run(r)
		log.put(some(1, "a", "")...)
		time.Sleep(time.Hour)
		if log.left() != 1 {
			b.Error("it was blamed for a broker that may be down")
		}
		begun := time.Now()
		log.put(some(10, "b", "")...)
		b.until("the others are out", func() bool { return log.left() == 0 })
		if spent := time.Since(begun); spent > 15*time.Second {
			b.Errorf("the others waited for %v", spent)
		}
		stop()
		if held := b.rows(store.Held); strings.Join(held, " ") != "a0000" {
			b.Errorf("held: %q", held)
		}
	})
}

// While nothing gets through, the reader of the log stops near MaxBytes.
func TestMaxBytesBoundsWhatIsReadOfTheLog(t *testing.T) {
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

// The database fails for a moment. Only the messages of the failed Sent are
// repeated.
func TestAFailedSentDoesNotRepeatTheWholeChunk(t *testing.T) {
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

// A tail stays valid after the error of a context, so Sent is tried again.
func TestASentThatTimesOutIsTriedAgain(t *testing.T) {
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

// replayingLog is a log in whose table a person replays the Stuck messages just
// before they are read.
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

// The reader of the log reads the Held messages, then the Stuck ones. A message
// that is replayed in between is in neither answer, but keeps its place.
func TestAReplayBetweenTwoLooksKeepsTheOrderOfItsKeyOfTheLog(t *testing.T) {
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
