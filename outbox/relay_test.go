//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
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

// unhurried is a publisher that takes ten milliseconds. Without it, this test
// would stay at one moment for ever.
type unhurried struct{ *sender }

func (u unhurried) Publish(ctx context.Context, ms []*broker.Message) []error {
	time.Sleep(10 * time.Millisecond)
	return u.sender.Publish(ctx, ms)
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) { test(newBench(t)) })
}

func TestEachMessageGoesOutOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		stop := b.run(b.relay())
		var all []*broker.Message
		for i := range 40 {
			ms := slices.Concat(some(20, fmt.Sprintf("a%02d-", i), ""), some(5, fmt.Sprintf("b%02d-", i), "b"), some(5, fmt.Sprintf("c%02d-", i), "c"))
			b.put(ms...)
			all = append(all, ms...)
		}
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		stop()
		b.wantAll(all)
		b.wantOrder("b")
		b.wantOrder("c")
		if left := b.rows(store.Pending); len(left) > 0 {
			b.Errorf("left behind: %q", left)
		}
	})
}

func TestARolledBackMessageIsNotPublished(t *testing.T) {
	inBubble(t, func(b *bench) {
		tx := b.store.Begin()
		b.must(b.events.Put(b.Context(), tx, message("no", "")))
		tx.Rollback()
		b.put(message("yes", ""))
		stop := b.run(b.relay())
		b.until("it is out", func() bool { return len(b.sender.taken()) > 0 })
		time.Sleep(time.Minute)
		stop()
		b.wantAll([]*broker.Message{message("yes", "")})
	})
}

// An open transaction has lower numbers than messages that are published before
// its commit.
func TestLateCommitsAreNotSkipped(t *testing.T) {
	inBubble(t, func(b *bench) {
		stop := b.run(b.relay())
		late := b.store.Begin()
		b.must(b.events.Put(b.Context(), late, message("late", "")))
		early := some(50, "early", "")
		b.put(early...)
		b.until("those behind it are out", func() bool { return len(b.rows(store.Pending)) == 0 && len(b.sender.taken()) == 50 })
		time.Sleep(time.Hour)
		b.must(late.Commit())
		b.until("the late one is out", func() bool { return len(b.sender.taken()) == 51 })
		stop()
		b.wantAll(append(early, message("late", "")))
	})
}

// A message that fails while no other gets through is never Stuck. Its ID and
// topic are logged.
func TestTheLogNamesMessagesThatAreRefused(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		b.put(message("alone", ""))
		r, said := b.relay(), new(strings.Builder)
		r.Logger = slog.New(slog.NewTextHandler(said, nil))
		stop := b.run(r)
		time.Sleep(time.Minute)
		stop()
		for _, want := range []string{"first=alone", "topic=orders", errDown.Error()} {
			if !strings.Contains(said.String(), want) {
				b.Errorf("the log lacks %q: %.300s", want, said)
			}
		}
	})
}

// poison fails for one message, in the ways that brokers know.
var poisons = map[string]func(s *sender, id string){
	"alone": func(s *sender, id string) {
		s.set(nil, func(m *broker.Message) error {
			if m.ID == id {
				return errors.New("cannot be taken")
			}
			return nil
		})
	},
	"with its batch": func(s *sender, id string) {
		s.set(func(ms []*broker.Message) error {
			if slices.Contains(ids(ms), id) {
				return errors.New("the channel was closed")
			}
			return nil
		}, nil)
	},
}

var errDead = errors.New("the machine is gone")

func TestDelayedMessagesWait(t *testing.T) {
	inBubble(t, func(b *bench) {
		stop := b.run(b.relay())
		begun := time.Now()
		tx := b.store.Begin()
		b.must(b.events.PutAfter(b.Context(), tx, 10*time.Minute, message("ten", "")))
		b.must(b.events.PutAfter(b.Context(), tx, time.Minute, message("one", "")))
		b.must(tx.Commit())
		for i, after := range []time.Duration{time.Minute, 10 * time.Minute} {
			b.until("it is out", func() bool { return len(b.sender.taken()) == i+1 })
			if late := time.Since(begun) - after; late < 0 || late > time.Second {
				b.Errorf("message %d went out %v after its time", i, late)
			}
		}
		stop()
	})
}

func TestKeptMessagesAreForgotten(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Then, r.KeepFor = store.Keep, time.Hour
		stop := b.run(r)
		b.put(some(20, "a", "")...)
		b.until("they are kept", func() bool { return len(b.rows(store.Published)) == 20 })
		time.Sleep(50 * time.Minute)
		if n := len(b.rows(store.Published)); n != 20 {
			b.Errorf("%d are kept after 50 minutes", n)
		}
		time.Sleep(20 * time.Minute)
		if n := len(b.rows(store.Published)); n != 0 {
			b.Errorf("%d are kept after 70 minutes", n)
		}
		stop()
	})
}

func TestAStopLeavesNothingHalfDone(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.gate = make(chan struct{})
		b.put(some(1200, "a", "")...)
		stop := b.run(b.relay())
		b.sender.gate <- struct{}{}
		synctest.Wait() // the second batch waits
		ended := make(chan struct{})
		go func() { stop(); close(ended) }()
		synctest.Wait()
		close(b.sender.gate)
		<-ended
		if out, left := len(b.sender.taken()), len(b.rows(store.Pending)); out != 1000 || left != 200 {
			b.Errorf("%d are out and %d are left, want 1000 and 200", out, left)
		}
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{1}, time.Hour, nil)
		b.must(err)
		if leases.Relays != 1 || leases.Lanes[0].Relay != ([16]byte{}) {
			b.Errorf("the relay has left something: %+v", leases)
		}
	})
}

// flaky fails every fifth call.
type flaky struct {
	store.Relayable
	calls *int
}

func (f flaky) fails() error {
	*f.calls++
	if *f.calls%5 == 0 {
		return errors.New("the database is flaky")
	}
	return nil
}

func (f flaky) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Relayable.Outgoing(ctx, q)
}

func (f flaky) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if err := f.fails(); err != nil {
		return 0, err
	}
	return f.Relayable.MoveOutgoing(ctx, relay, ms, to)
}

func TestADatabaseInTroubleDoublesNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		r, sent := b.relay(), 0
		r.Store = flakySent{flaky{b.store, new(int)}, &sent}
		all := append(some(2000, "a", ""), some(50, "k", "key")...)
		b.put(all...)
		stop := b.run(r)
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) && len(b.rows(store.Pending)) == 0 })
		stop()
		b.wantAll(all)
		b.wantOrder("key")
		if sent == 0 {
			b.Error("Sent has never failed")
		}
	})
}

type flakySent struct {
	flaky
	failed *int
}

func (f flakySent) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if *f.failed++; *f.failed%3 != 0 {
		return 0, errors.New("the database is flaky")
	}
	return f.Relayable.Sent(ctx, relay, ms, then)
}

func TestMessagesSayWhereTheyStand(t *testing.T) {
	inBubble(t, func(b *bench) {
		m := message("a", "key")
		m.Header = map[string]string{"tenant": "7"}
		again := message("b", "key") // as a consumer got it
		again.Header = map[string]string{outbox.SeqHeader: "999", broker.PlaceHeader: "999"}
		b.put(m, again)
		foreign := message("c", "key") // its row is from another program
		foreign.Header = map[string]string{outbox.SeqHeader: "999", broker.PlaceHeader: "999"}
		tx := b.store.Begin()
		b.must(b.store.PutTx(b.Context(), tx, []store.Outgoing{{Message: *foreign}}))
		b.must(tx.Commit())
		b.put(message("d", "key"))
		stop := b.run(b.relay())
		b.until("they are out", func() bool { return len(b.sender.taken()) == 4 })
		stop()
		last := 0
		for _, m := range b.sender.took {
			n, err := strconv.Atoi(m.Header[outbox.SeqHeader])
			if err != nil || n <= last {
				b.Errorf("%s is behind %d in %v", m.ID, last, m.Header)
			}
			last = n
		}
		if b.sender.took[0].Header["tenant"] != "7" || string(b.sender.took[0].Body) != "body of a" {
			b.Errorf("it came as %+v", b.sender.took[0])
		}
	})
}

func TestABadRelayIsRefused(t *testing.T) {
	b := newBench(t)
	for name, change := range map[string]func(*outbox.Relay){
		"no store":     func(r *outbox.Relay) { r.Store = nil },
		"no publisher": func(r *outbox.Relay) { r.Publisher = nil },
		"batch":        func(r *outbox.Relay) { r.Batch = -1 },
		"large batch":  func(r *outbox.Relay) { r.Batch = 10_001 },
		"bytes":        func(r *outbox.Relay) { r.MaxBytes = -1 },
		"then":         func(r *outbox.Relay) { r.Then = 3 },
		"on stuck":     func(r *outbox.Relay) { r.OnStuck = 2 },
		"attempts":     func(r *outbox.Relay) { r.Retry.Attempts = -1 },
		"limit":        func(r *outbox.Relay) { r.Retry = outbox.Retry{First: time.Hour, Limit: time.Minute} },
		"poll":         func(r *outbox.Relay) { r.Poll = -1 },
		"short lease":  func(r *outbox.Relay) { r.Lease = 5 * time.Millisecond },
	} {
		r := b.relay()
		change(r)
		if err := r.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		} else if name == "short lease" && !strings.Contains(err.Error(), "raise the Lease") {
			t.Errorf("%s: %v does not say what to do", name, err)
		}
	}
}

// refusing is a store without tables.
type refusing struct{ store.Relayable }

func (refusing) LeaseLanes(context.Context, [16]byte, time.Duration, []int) (store.Leases, error) {
	return store.Leases{}, fmt.Errorf("%w: no tables: call Migrate", once.ErrInvalid)
}

func TestAStoreWithoutTablesIsAnError(t *testing.T) {
	b := newBench(t)
	r := b.relay()
	r.Store = refusing{b.store}
	if err := r.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Error(err)
	}
}

// A notice may come just before its commit. Then the message does not wait for
// a timer. Notices that follow each other closely cause a read each.
func TestANoticeBeforeItsCommit(t *testing.T) {
	inBubble(t, func(b *bench) {
		early := &earlyBell{Store: b.store, rung: make(chan struct{})}
		r := b.relay()
		r.Store = early
		stop := b.run(r)
		time.Sleep(time.Minute) // it has leases, and is idle
		ring := func(read func(nth int64)) (reads int64) {
			synctest.Wait()
			before := early.reads.Load()
			early.read = func() { read(early.reads.Load() - before) }
			early.rung <- struct{}{}
			synctest.Wait()
			return early.reads.Load() - before
		}
		nothing := func(int64) {}
		if first, second := ring(nothing), ring(nothing); first != 5 || second != 1 {
			b.Errorf("two notices at once cause %d and %d reads, and not 5 and 1", first, second)
		}
		time.Sleep(time.Minute)
		ring(func(nth int64) {
			if nth == 3 {
				b.put(message("late", ""))
			}
		})
		if !slices.Contains(b.sender.taken(), "late") {
			b.Error("a message that was committed after the second read waits for a timer")
		}
		stop()
	})
}

// The poll is a safety net: a relay that is notified of all messages neither reads
// nor asks for delayed ones before it, and still wakes a delayed one in time.
func TestALongPollIsKeptBesideABell(t *testing.T) {
	inBubble(t, func(b *bench) {
		early := &earlyBell{Store: b.store, rung: make(chan struct{})}
		r := b.relay()
		r.Store, r.Poll = early, time.Hour
		stop := b.run(r)
		defer stop()
		time.Sleep(time.Minute)
		reads, asks := early.pending.Load(), early.asks.Load()
		time.Sleep(50 * time.Minute)
		if reads, asks = early.pending.Load()-reads, early.asks.Load()-asks; reads+asks > 0 {
			b.Errorf("in 50 minutes without a message, the relay has read %d times, and asked for delayed ones %d times", reads, asks)
		}
		tx := b.store.Begin()
		b.must(b.events.PutAfter(b.Context(), tx, 10*time.Second, message("delayed", "")))
		b.must(tx.Commit())
		b.put(message("now", ""))
		early.rung <- struct{}{}
		synctest.Wait()
		if got := b.sender.taken(); !slices.Equal(got, []string{"now"}) {
			b.Errorf("after a notice, %q were published", got)
		}
		time.Sleep(12 * time.Second)
		if got := b.sender.taken(); !slices.Contains(got, "delayed") {
			b.Errorf("when a delayed message is due, %q were published", got)
		}
		b.put(message("polled", "")) // without a notice
		time.Sleep(time.Hour + time.Second)
		if got := b.sender.taken(); !slices.Contains(got, "polled") {
			b.Errorf("after the poll, %q were published", got)
		}
	})
}

// Messages that are put while nobody listens do not wait for the poll once the
// relay listens again.
func TestARelayThatListensAgainLooks(t *testing.T) {
	inBubble(t, func(b *bench) {
		early := &earlyBell{Store: b.store, rung: make(chan struct{}), breaks: make(chan struct{})}
		r := b.relay()
		r.Store, r.Poll = early, time.Hour
		stop := b.run(r)
		defer stop()
		time.Sleep(time.Minute)
		early.breaks <- struct{}{}
		synctest.Wait()
		b.put(message("1", ""))
		time.Sleep(5 * time.Second)
		if got := b.sender.taken(); !slices.Contains(got, "1") {
			b.Errorf("after the relay listens again, %q were published", got)
		}
	})
}

// slowTable takes time for each message that is asked for, as a service without
// an index for them may.
type slowTable struct{ *memstore.Store }

func (s slowTable) wait(ctx context.Context, limit int) error {
	select {
	case <-time.After(time.Duration(limit) * 50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slowTable) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if q.State == store.Pending {
		if err := s.wait(ctx, q.Limit); err != nil {
			return nil, err
		}
	}
	return s.Store.Outgoing(ctx, q)
}

func (s slowTable) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState, limit int) (int, time.Duration, error) {
	if err := s.wait(ctx, limit); err != nil {
		return 0, 0, err
	}
	return s.Store.WakeDelayed(ctx, relay, to, limit)
}

// A read that the store does not answer in time is not repeated as it was.
func TestASlowStoreIsAskedForLess(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		r.Store = slowTable{b.store}
		all := some(300, "m", "")
		b.put(all...)
		stop := b.run(r)
		defer stop()
		time.Sleep(15 * time.Minute)
		b.wantAll(all)
	})
}

// earlyBell rings when it is told to, and calls read before each read of the
// relay.
type earlyBell struct {
	*memstore.Store
	rung    chan struct{}
	breaks  chan struct{}
	reads   atomic.Int64
	pending atomic.Int64 // reads of what is Pending
	asks    atomic.Int64 // for delayed messages
	read    func()
}

func (e *earlyBell) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState, limit int) (int, time.Duration, error) {
	e.asks.Add(1)
	return e.Store.WakeDelayed(ctx, relay, to, limit)
}

func (e *earlyBell) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if e.reads.Add(1); e.read != nil {
		e.read()
	}
	if q.State == store.Pending {
		e.pending.Add(1)
	}
	return e.Store.Outgoing(ctx, q)
}

func (e *earlyBell) HearOutbox(context.Context) (store.Ear, error) { return e, nil }
func (e *earlyBell) Far() bool                                     { return true }
func (e *earlyBell) Close()                                        {}

func (e *earlyBell) Wait(ctx context.Context) error {
	select {
	case <-e.rung:
		return nil
	case <-e.breaks:
		return errors.New("the bell is broken")
	case <-ctx.Done():
		return ctx.Err()
	}
}
