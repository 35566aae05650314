//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
)

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

func TestWhatIsRolledBackStaysIn(t *testing.T) {
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

// A transaction that is open has the lower numbers, and commits when higher ones are long gone.
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

func TestABrokerThatIsDownBlamesNobody(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		all := append(some(300, "a", "key"), some(300, "b", "")...)
		b.put(all...)
		r := b.relay()
		stop := b.run(r)
		time.Sleep(2 * time.Hour)
		ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{Limit: 1000})
		b.must(err)
		if len(ms) != 600 || slices.ContainsFunc(ms, func(m store.Outgoing) bool { return m.Attempts > 0 }) {
			b.Errorf("%d messages are pending, some of them blamed: %+v", len(ms), ms[0])
		}
		if n := b.sender.called(); n > 2*60*60 {
			b.Errorf("a broker that is down was called %d times in two hours", n)
		}
		b.sender.set(nil, nil)
		b.until("everything is out", func() bool { return len(b.sender.taken()) == 600 })
		stop()
		b.wantAll(all)
		b.wantOrder("key")
	})
}

// What is alone and does not get through is never stuck: its name and topic are in the log.
func TestTheLogNamesWhatDoesNotGetThrough(t *testing.T) {
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

func TestPoisonIsStuckAndOthersFlow(t *testing.T) {
	for name, poison := range poisons {
		for _, policy := range []outbox.OnStuck{outbox.HoldOrder, outbox.Pass} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				inBubble(t, func(b *bench) {
					poison(b.sender, "key0003")
					b.put(some(10, "key", "key")...)
					b.put(some(200, "other", "")...)
					r := b.relay()
					r.OnStuck = policy
					stop := b.run(r)
					b.until("the others are out", func() bool { return len(b.sender.taken()) >= 203 })
					begun := time.Now()
					b.until("it is stuck", func() bool {
						b.put(message(fmt.Sprint("more", time.Since(begun)), "")) // others have to get through for it to be blamed
						time.Sleep(3 * time.Second)
						return len(b.rows(store.Stuck)) == 1
					})
					if spent := time.Since(begun); spent < 2*time.Second || spent > 2*time.Hour {
						b.Errorf("ten attempts took %v", spent)
					}
					time.Sleep(10 * time.Minute)
					want := 3
					if policy == outbox.Pass {
						want = 9
					}
					keyed := slices.DeleteFunc(b.sender.taken(), func(id string) bool { return !strings.HasPrefix(id, "key") })
					if len(keyed) != want {
						b.Errorf("of its key %q are out, want %d", keyed, want)
					}
					stuck, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Stuck})
					b.must(err)
					if m := stuck[0]; m.Message.ID != "key0003" || m.Attempts != 10 || m.Reason == "" {
						b.Errorf("stuck is %+v", m)
					}

					b.sender.set(nil, nil)
					tally, err := outbox.Admin{Store: b.store}.Replay(b.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
					b.must(err)
					if tally.Changed != 1 {
						b.Errorf("%+v", tally)
					}
					b.until("all of the key are out", func() bool { return len(b.rows(store.Held))+len(b.rows(store.Stuck)) == 0 })
					stop()
					if policy == outbox.HoldOrder {
						b.wantOrder("key")
					}
				})
			})
		}
	}
}

func TestWhatCanNeverBePublishedIsStuckAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "a0001" {
				return fmt.Errorf("%w: too large", broker.ErrInvalid)
			}
			return nil
		})
		b.put(some(3, "a", "")...)
		stop := b.run(b.relay())
		b.until("it is stuck", func() bool { return len(b.rows(store.Stuck)) == 1 && len(b.sender.taken()) == 2 })
		stop()
	})
}

// A topic that the broker does not have must not hold up the others, however many messages it has.
func TestABadTopicDoesNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(b *bench) {
		bad := some(3000, "bad", "")
		for _, m := range bad {
			m.Topic = "misspelt"
		}
		b.put(bad...)
		good := some(3000, "good", "")
		b.put(good...)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.Topic == "misspelt" {
				return errors.New("no such topic")
			}
			return nil
		})
		begun := time.Now()
		stop := b.run(b.relay())
		b.until("the good ones are out", func() bool { return len(b.sender.taken()) == 3000 })
		if spent := time.Since(begun); spent > 10*time.Second {
			b.Errorf("they were held up for %v", spent)
		}
		if n := b.sender.called(); n > 300 {
			b.Errorf("there were %d calls", n)
		}
		stop()
		b.wantAll(good)
	})
}

func TestRelaysShareTheWork(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.relay()
		var stops []func()
		var all []*broker.Message
		send := func(round string) {
			ms := append(some(100, round+"a", ""), some(20, round+"k", "key")...)
			all = append(all, ms...)
			for part := range slices.Chunk(ms, 7) {
				b.put(part...)
				time.Sleep(300 * time.Millisecond)
			}
		}
		for i := range 5 {
			stops = append(stops, b.run(r))
			send(fmt.Sprint("start", i))
		}
		time.Sleep(time.Minute)
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{1}, time.Nanosecond, nil)
		b.must(err)
		shares := make(map[[16]byte]int)
		for _, lane := range leases.Lanes {
			shares[lane.Relay]++
		}
		if least := slices.Min(slices.Collect(maps.Values(shares))); len(shares) != 5 || least < 1 {
			b.Errorf("the lanes are shared as %v", shares)
		}
		for i, stop := range stops[:4] {
			stop()
			send(fmt.Sprint("stop", i))
		}
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		stops[4]()
		b.wantAll(all)
		if n := r.Stats.Repeated.Load(); n > 0 {
			b.Errorf("%d were repeated", n)
		}
	})
}

// dead is a store that nobody hears of any more.
type dead struct {
	store.Relayable
	when *atomic.Bool
}

var errDead = errors.New("the machine is gone")

func (d dead) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	if d.when.Load() {
		return store.Leases{}, errDead
	}
	return d.Relayable.LeaseLanes(ctx, relay, ttl, lanes)
}

func (d dead) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if d.when.Load() {
		return nil, errDead
	}
	return d.Relayable.Outgoing(ctx, q)
}

func (d dead) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if d.when.Load() {
		return 0, errDead
	}
	return d.Relayable.Sent(ctx, relay, ms, then)
}

func (d dead) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	if d.when.Load() {
		return errDead
	}
	return d.Relayable.ReleaseLanes(ctx, relay, lanes)
}

func TestADeadRelayIsSucceeded(t *testing.T) {
	inBubble(t, func(b *bench) {
		var gone atomic.Bool
		r := b.relay()
		r.Store = dead{b.store, &gone}
		stop := b.run(r)
		b.put(some(10, "a", "")...)
		b.until("they are out", func() bool { return len(b.sender.taken()) == 10 })
		gone.Store(true)
		b.put(some(10, "b", "")...)
		time.Sleep(5 * time.Second)
		begun := time.Now()
		other := b.run(b.relay())
		b.until("they are out", func() bool { return len(b.sender.taken()) == 20 })
		if spent := time.Since(begun); spent < 10*time.Second || spent > 40*time.Second {
			b.Errorf("the other took over after %v, the lease is 30 s", spent)
		}
		stop()
		other()
		b.wantAll(append(some(10, "a", ""), some(10, "b", "")...))
	})
}

// A relay stalls in the middle of a publish until its lease is another's.
func TestAStalledRelayChangesNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		stalled := &sender{gate: make(chan struct{})}
		r := b.relay()
		var gone atomic.Bool
		r.Store, r.Publisher, r.Then = dead{b.store, &gone}, stalled, store.Keep
		stop := b.run(r)
		b.put(some(10, "a", "")...)
		time.Sleep(5 * time.Second)
		gone.Store(true) // it cannot renew
		other := b.relay()
		other.Then = store.Keep
		stopOther := b.run(other)
		b.until("the other has sent them", func() bool { return len(b.sender.taken()) == 10 })
		time.Sleep(time.Second)
		kept := b.rows(store.Published)
		b.put(some(10, "b", "")...)
		b.until("the other has sent these too", func() bool { return len(b.sender.taken()) == 20 })
		gone.Store(false)
		close(stalled.gate)
		time.Sleep(time.Minute)
		stop()
		stopOther()
		if n := r.Stats.Repeated.Load(); n != 10 {
			b.Errorf("%d were found to be sent twice, want 10", n)
		}
		if len(kept) != 10 || len(b.rows(store.Published)) != 20 {
			b.Errorf("kept %d, then %d", len(kept), len(b.rows(store.Published)))
		}
	})
}

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

func TestAKeyIsOnceInABatch(t *testing.T) {
	for _, overtaking := range []bool{false, true} {
		inBubble(t, func(b *bench) {
			b.put(append(some(30, "k", "key"), some(30, "a", "")...)...)
			r := b.relay()
			r.Overtaking = overtaking
			stop := b.run(r)
			b.until("everything is out", func() bool { return len(b.sender.taken()) == 60 })
			stop()
			limit := 0
			for _, call := range b.sender.calls {
				keyed := slices.DeleteFunc(slices.Clone(call), func(id string) bool { return id[0] != 'k' })
				limit = max(limit, len(keyed))
			}
			if overtaking != (limit > 1) {
				b.Errorf("overtaking %v: %d of one key in a batch", overtaking, limit)
			}
			b.wantOrder("key")
		})
	}
}

// What is held when a relay ends is held for the next one.
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
		b.put(m, message("b", "key"))
		stop := b.run(b.relay())
		b.until("they are out", func() bool { return len(b.sender.taken()) == 2 })
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
		"short lease":  func(r *outbox.Relay) { r.Lease = 5 * time.Second },
	} {
		r := b.relay()
		change(r)
		if err := r.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		} else if name == "short lease" && !strings.Contains(err.Error(), "raise the one") {
			t.Errorf("%s: %v does not say what to do", name, err)
		}
	}
}

// refusing is a store whose tables were never made.
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
