//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// onQuietBench is onBench without a log, for tests that last for days.
func onQuietBench(t *testing.T, test func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		o := &memstore.Options{Options: once.Options{Logger: slog.New(slog.DiscardHandler)}}
		test(t, &bench{t: t, store: memstore.New(o), broker: membroker.New(nil), calls: make(map[string]int)})
	})
}

// dependency is something that handlers need. It notes who called it, and in what
// order the calls that succeeded came.
type dependency struct {
	down  atomic.Bool
	calls atomic.Int64
	err   error

	mu      sync.Mutex
	through []string
}

func (d *dependency) call(m *broker.Message) error {
	d.calls.Add(1)
	if d.down.Load() {
		return d.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.through = append(d.through, m.ID)
	return nil
}

// inEachShape runs a test with every kind of handler. handle is called for each
// message, with what the handler needs.
func inEachShape(t *testing.T, test func(t *testing.T, b *bench, consumer func(handle func(*broker.Message) error) *inbox.Consumer)) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onQuietBench(t, func(t *testing.T, b *bench) {
				test(t, b, func(handle func(*broker.Message) error) *inbox.Consumer {
					c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
						if err := handle(m); err != nil {
							return err
						}
						return b.effect(ctx, tx, m)
					})
					c.Retry = inbox.Retry{}
					return c
				})
			})
		})
	}
	t.Run("do", func(t *testing.T) {
		t.Parallel()
		onQuietBench(t, func(t *testing.T, b *bench) {
			test(t, b, func(handle func(*broker.Message) error) *inbox.Consumer {
				op := &once.Operation[string]{OnUnknown: once.Park}
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
				c.Handler = inbox.Do(b.store, op, func(ctx context.Context, _ once.Key, m *broker.Message) (string, error) {
					if err := handle(m); err != nil {
						return "", once.NotDone(err)
					}
					tx := b.store.Begin()
					b.add(tx, m.ID)
					return "", tx.Commit()
				})
				return c
			})
		})
	})
}

// sleepUntil waits in fake time.
func sleepUntil(limit time.Duration, holds func() bool) bool {
	for begun := time.Now(); time.Since(begun) < limit; time.Sleep(100 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}

// While nothing gets through, no message is to blame: none is parked, few are
// tried, and all are handled in the order of their keys as soon as the outage ends.
func TestAnOutageParksNothing(t *testing.T) {
	for _, outage := range []struct {
		lasts               time.Duration
		messages, processes int
	}{
		{3 * time.Minute, 1, 1}, {3 * time.Minute, 2, 2}, {3 * time.Minute, 200, 1}, {3 * time.Minute, 100, 2}, {10 * time.Hour, 1, 1}, {10 * time.Hour, 60, 1},
	} {
		lasts, n, processes := outage.lasts, outage.messages, outage.processes
		t.Run(fmt.Sprintf("%v, %d messages, %d processes", lasts, n, processes), func(t *testing.T) {
			inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
				if kind := t.Name()[strings.LastIndex(t.Name(), "/")+1:]; lasts > time.Hour && kind != "tx" && kind != "log" && kind != "do" {
					t.Skip("the others have shown it in three minutes")
				}
				dep := &dependency{err: errors.New("the dependency is down")}
				dep.down.Store(true)
				var cs []*inbox.Consumer
				for range processes {
					c := consumer(dep.call)
					start(t, c)
					cs = append(cs, c)
				}
				var ms []*broker.Message
				for i := range n {
					m := message(fmt.Sprint("m", i))
					if i%2 == 0 {
						m.OrderingKey = fmt.Sprint("k", i%10)
					}
					ms = append(ms, m)
				}
				b.publish("orders", ms...)
				time.Sleep(lasts)
				calls := dep.calls.Load()
				if limit := int64(lasts/(2*time.Second)) + 100; calls > limit {
					t.Errorf("it was called %d times in %v", calls, lasts)
				}
				if !slices.ContainsFunc(cs, func(c *inbox.Consumer) bool { return c.Stats.Down.Load() == 1 }) {
					t.Error("no consumer says that the topic is down")
				}
				dep.down.Store(false)
				if !sleepUntil(2*time.Minute, func() bool { return len(handled(b, ms)) == n }) {
					t.Errorf("%d of %d are handled two minutes after the outage; on the shelf: %d", len(handled(b, ms)), n, len(b.onTheShelf()))
				}
				for _, m := range b.onTheShelf(store.Parked) {
					t.Errorf("%s is parked: %s", m.Message.ID, m.Reason)
				}
				if processes == 1 { // sessions of a queue compete
					inOrderOfKeys(t, ms, dep.through)
					if !sleepUntil(time.Second, func() bool { return cs[0].Stats.Down.Load() == 0 }) { // it is said after the commit
						t.Error("the topic is still down")
					}
				}
			})
		})
	}
}

// An attempt that begins in an outage and fails after it is the first that counts:
// the failures before it were nobody's fault either.
func TestAnAttemptThatOutlivesAnOutageParksNothing(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		dep, outlives := &dependency{err: errors.New("the dependency is down")}, make(chan struct{}, 1)
		dep.down.Store(true)
		c := consumer(func(m *broker.Message) error {
			err := dep.call(m)
			select {
			case <-outlives:
				time.Sleep(time.Minute)
			default:
			}
			return err
		})
		start(t, c)
		early, late := message("early"), message("late")
		b.publish("orders", early)
		time.Sleep(5 * time.Minute)
		outlives <- struct{}{}
		time.Sleep(30 * time.Second) // it has begun
		dep.down.Store(false)
		b.publish("orders", late)
		ms := []*broker.Message{early, late}
		if !sleepUntil(5*time.Minute, func() bool { return len(handled(b, ms)) == 2 }) {
			t.Errorf("only %q are handled", handled(b, ms))
		}
		for _, m := range b.onTheShelf(store.Parked) {
			t.Errorf("%s is parked: %s", m.Message.ID, m.Reason)
		}
	})
}

// A failure that is not counted does not take back the attempts that never
// ended: a message that ends its process, and fails now and then, ends a bounded
// number of them although nothing else gets through.
func TestAnOutageForgivesNoDeaths(t *testing.T) {
	const attempts = 4
	test := func(t *testing.T, b *bench, c *inbox.Consumer, deaths *atomic.Int64) {
		c.Retry.Attempts = attempts
		start(t, c)
		b.publish("orders", message("bad"))
		for seen := int64(0); seen <= 5*attempts; {
			if !sleepUntil(time.Hour, func() bool { return deaths.Load() > seen || len(b.onTheShelf(store.Parked)) > 0 }) {
				t.Fatalf("after %d deaths, it is neither tried nor parked: %+v", seen, b.onTheShelf())
			}
			if len(b.onTheShelf(store.Parked)) > 0 {
				break
			}
			seen = deaths.Load()
			b.broker.Restart()
		}
		if n := deaths.Load(); n > attempts+1 {
			t.Errorf("with %d attempts, %d processes died", attempts, n)
		}
	}
	deadly := func(calls, deaths *atomic.Int64) error { // before each failure, as many deaths as do not park it
		if calls.Add(1)%attempts != 0 {
			deaths.Add(1)
			runtime.Goexit()
		}
		return errors.New("no")
	}
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		var calls, deaths atomic.Int64
		test(t, b, consumer(func(*broker.Message) error { return deadly(&calls, &deaths) }), &deaths)
	})
	for _, source := range []string{"queue", "log"} {
		t.Run("do, resend, "+source, func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				var calls, deaths atomic.Int64
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders")}
				if source == "log" {
					c.Source = b.broker.Log("orders", "billing", 1)
				}
				op := &once.Operation[string]{OnUnknown: once.Resend}
				c.Handler = inbox.Do(b.store, op, func(context.Context, once.Key, *broker.Message) (string, error) {
					return "", once.NotDone(deadly(&calls, &deaths))
				})
				test(t, b, c, &deaths)
			})
		})
	}
}

func handled(b *bench, ms []*broker.Message) (done []string) {
	for _, m := range ms {
		if b.count(m.ID) == 1 {
			done = append(done, m.ID)
		}
	}
	return done
}

// inOrderOfKeys checks that the messages of each ordering key got through in the
// order in which they were published.
func inOrderOfKeys(t *testing.T, ms []*broker.Message, through []string) {
	t.Helper()
	last := make(map[string]int)
	for _, id := range through {
		i := slices.IndexFunc(ms, func(m *broker.Message) bool { return m.ID == id })
		if key := ms[i].OrderingKey; key != "" {
			if i < last[key] {
				t.Errorf("%s came after %s", id, ms[last[key]].ID)
			}
			last[key] = i
		}
	}
}

// A message that fails while others of its topic get through is to blame.
func TestAPoisonousMessageBesideOthersIsParkedWithinItsAttempts(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		var calls atomic.Int64
		c := consumer(func(m *broker.Message) error {
			if m.ID == "bad" {
				calls.Add(1)
				return errors.New("poison")
			}
			return nil
		})
		start(t, c)
		b.publish("orders", message("bad"))
		for i := range 40 { // a little traffic
			time.Sleep(5 * time.Second)
			b.publish("orders", message(fmt.Sprint("m", i)))
		}
		if !sleepUntil(time.Minute, func() bool { return c.Stats.Parked.Load() == 1 }) {
			t.Errorf("not parked after %d attempts", calls.Load())
		}
		if n := calls.Load(); n > 10 {
			t.Errorf("parked after %d attempts", n)
		}
	})
}

// A message that always fails and is alone in its topic cannot be told from an
// outage. It is parked after Retry.Outage.
func TestAPoisonousMessageThatIsAloneIsParkedAtLast(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		c := consumer(func(*broker.Message) error { return errors.New("poison") })
		c.Retry.Outage = time.Hour
		start(t, c)
		b.publish("orders", message("bad"))
		time.Sleep(time.Hour)
		if n := c.Stats.Parked.Load(); n != 0 {
			t.Errorf("%d are parked", n)
		}
		if !sleepUntil(10*time.Minute, func() bool { return c.Stats.Parked.Load() == 1 }) {
			t.Error("it is not parked")
		}
	})
}

// A handler that says what is wrong is believed at once.
func TestUnavailableHoldsTheTopic(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		dep := &dependency{err: once.RetryAfter(time.Minute, inbox.Unavailable(errors.New("connection refused")))}
		dep.down.Store(true)
		c := consumer(dep.call)
		c.Concurrency = 1
		start(t, c)
		ms := numbered(20)
		b.publish("orders", ms...)
		time.Sleep(50 * time.Second)
		if n := dep.calls.Load(); n > 6 { // a batch is divided until one is alone
			t.Errorf("tried %d times before the minute was over", n)
		}
		dep.down.Store(false)
		if !sleepUntil(time.Minute, func() bool { return len(handled(b, ms)) == 20 }) {
			t.Errorf("%d are handled", len(handled(b, ms)))
		}
	})
}

// Topics are judged apart: one that is down keeps no other from the window.
func TestATopicThatIsDownLeavesOthersAlone(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("all"), Stats: new(inbox.Stats)}
		b.broker.Bind("all", "down")
		b.broker.Bind("all", "up")
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.Topic == "down" {
				return errors.New("the dependency is down")
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		for i := range 100 {
			b.publish("down", message(fmt.Sprint("d", i)))
		}
		var up []*broker.Message
		for i := range 100 {
			up = append(up, message(fmt.Sprint("u", i)))
		}
		b.publish("up", up...)
		if !sleepUntil(10*time.Minute, func() bool { return len(handled(b, up)) == 100 }) {
			t.Errorf("%d of 100 are handled", len(handled(b, up)))
		}
		if n := c.Stats.Parked.Load(); n > 0 {
			t.Errorf("%d are parked", n)
		}
	})
}

// What waits on the shelf for a topic that is down, however much that is, does not
// keep messages of other topics from being handled there.
func TestAFullShelfOfATopicThatIsDownLeavesOthersAlone(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		const down, healthy = 1000, 20
		var ms []store.Shelved
		for i := range down + healthy {
			m := message(fmt.Sprint("m", i))
			if m.Topic = "down"; i >= down {
				m.Topic, m.OrderingKey = "healthy", fmt.Sprint("k", i%3)
			}
			ms = append(ms, store.Shelved{Consumer: "billing", Key: m.ID, Message: *m, State: store.Waiting})
		}
		if err := b.store.Shelve(t.Context(), ms); err != nil {
			t.Fatal(err)
		}
		dep := &dependency{err: inbox.Unavailable(errors.New("the dependency is down"))}
		dep.down.Store(true)
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.Topic == "down" {
				if err := dep.call(m); err != nil {
					return err
				}
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		if !sleepUntil(time.Minute, func() bool { return c.Stats.Handled.Load() == healthy }) {
			t.Errorf("in a minute, %d of %d messages of the healthy topic were handled", c.Stats.Handled.Load(), healthy)
		}
		if calls := dep.calls.Load(); calls > 100 {
			t.Errorf("the dependency was called %d times in a minute", calls)
		}
		dep.down.Store(false)
		if !sleepUntil(5*time.Minute, func() bool { return c.Stats.Handled.Load() == down+healthy }) {
			t.Errorf("%d of %d messages were handled after the outage", c.Stats.Handled.Load(), down+healthy)
		}
	})
}

// Other processes can read what is down, and since when, also after a restart of
// the consumer.
func TestAnOutageIsReported(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		outages := func() []inbox.Outage {
			all, err := inbox.Outages(t.Context(), b.store, "billing")
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		dep := &dependency{err: inbox.Unavailable(errors.New("connection refused"))}
		dep.down.Store(true)
		first := consumer(dep.call)
		b.publish("orders", message("m0"))
		begun := time.Now()
		stop := start(t, first)
		for restarted := range 3 {
			if !sleepUntil(time.Minute, func() bool { return len(outages()) == 1 }) {
				t.Fatal("nothing is reported")
			}
			time.Sleep(10 * time.Minute)
			all := outages()
			if len(all) != 1 || all[0].Topic != "orders" || all[0].Since.Sub(begun).Abs() > 30*time.Second ||
				time.Since(all[0].Seen) > 2*time.Minute || all[0].Reason == "" {
				t.Fatalf("after %d restarts: %+v", restarted, all)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			stop = start(t, consumer(dep.call))
		}
		dep.down.Store(false)
		if !sleepUntil(time.Minute, func() bool { return b.count("m0") == 1 && len(outages()) == 0 }) {
			t.Errorf("it is over, and still reported: %+v", outages())
		}
	})
}

// The evidence against a message remains when its topic has become quiet.
func TestPoisonousMessagesOfAQuietTopicAreParkedWithinTheirAttempts(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		var calls atomic.Int64
		var last string
		c := consumer(func(m *broker.Message) error {
			if strings.HasPrefix(m.ID, "bad") {
				calls.Add(1)
				return errors.New("poison")
			}
			if m.ID == last {
				time.Sleep(time.Second) // it gets through after the bad ones have failed
			}
			return nil
		})
		start(t, c)
		ms := numbered(60)
		last = ms[len(ms)-1].ID
		for i := range 7 {
			ms = slices.Insert(ms, 5*i, message(fmt.Sprint("bad", i)))
		}
		b.publish("orders", ms...)
		if !sleepUntil(30*time.Minute, func() bool { return c.Stats.Parked.Load() == 7 }) {
			t.Errorf("%d of 7 are parked, after %d attempts", c.Stats.Parked.Load(), calls.Load())
		}
		if n := calls.Load(); n > 7*10*3 { // a batch has them tried together first
			t.Errorf("parked after %d attempts", n)
		}
	})
}

// Also if an attempt takes a while, it is the only one.
func TestOneMessageOfATopicThatIsDownIsTriedAtATime(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		var calls, running, most atomic.Int64
		var down atomic.Bool
		c := consumer(func(*broker.Message) error {
			calls.Add(1)
			n := running.Add(1)
			defer running.Add(-1)
			if down.Load() && n > most.Load() {
				most.Store(n)
			}
			time.Sleep(2 * time.Second)
			return inbox.Unavailable(errors.New("timeout"))
		})
		start(t, c)
		b.publish("orders", numbered(20)...)
		time.Sleep(time.Minute) // those that had begun before have failed
		down.Store(true)
		time.Sleep(10 * time.Minute)
		if n := most.Load(); n != 1 {
			t.Errorf("up to %d are tried at the same time, after %d attempts", n, calls.Load())
		}
	})
}

// A process that died while it reported an outage leaves nothing that looks like
// work of unknown outcome.
func TestAReportThatWasCutIsEnded(t *testing.T) {
	inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
		key := once.Key{Operation: "billing@@outages", ID: "outages"}
		claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Second}
		if _, err := b.store.Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		start(t, consumer(func(*broker.Message) error { return nil }))
		if !sleepUntil(time.Minute, func() bool {
			rec, err := b.store.Get(t.Context(), key)
			return err == nil && rec.Status == once.Absent
		}) {
			t.Error("it is still unknown")
		}
	})
}
