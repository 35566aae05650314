//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// logStore is a store whose messages come out of a log: a slice of them, of which one reader at a time learns.
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

// put puts messages in one transaction.
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

func TestWhatTheLogHasGoesOutOnce(t *testing.T) {
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

// The log is confirmed by one position, and only at the end of a transaction. Whoever stops has published all that is
// before the latest message that it published, and all of its transaction.
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

// A relay is stopped while the broker takes nothing, and has received more of the transaction of which something was
// published since it last tried.
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

// A message that does not get through goes to the table, with those behind it, and on from there.
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

// A poison that is alone in the log is found out as soon as others get through.
func TestLonelyPoisonWaitsForCompany(t *testing.T) {
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
