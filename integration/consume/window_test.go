//go:build linux

package consume

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// onBoth runs a test on a store of each kind of transaction.
func onBoth(t *testing.T, test func(*testing.T, *stand)) {
	for _, engine := range []string{pgStore, sqlite} {
		t.Run(engine, func(t *testing.T) { test(t, newStand(t, newWorldOn(t, engine))) })
	}
}

// stand is a world with a broker in memory that can fail on request.
type stand struct {
	*world
	broker *membroker.Broker
	place  *workplace
	calls  string
}

func newStand(t testing.TB, w *world) *stand {
	t.Helper()
	calls := filepath.Join(t.TempDir(), "calls")
	place, err := newWorkplace("here", calls)
	must(t, err)
	return &stand{world: w, broker: membroker.New(nil), place: place, calls: calls}
}

// mode is how handled messages are remembered.
type mode string

const (
	one        mode = "single"
	many       mode = "batch"
	positioned mode = "checkpoint"
)

var modes = []mode{one, many, positioned}

// onModes runs a test in each mode, on both stores.
func onModes(t *testing.T, test func(*testing.T, *stand, mode)) {
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) { onBoth(t, func(t *testing.T, s *stand) { test(t, s, m) }) })
	}
}

// consumer returns a consumer of the orders, which are in a queue, or in a log
// of one partition for positions.
func (s *stand) consumer(m mode) *inbox.Consumer {
	c := &inbox.Consumer{Name: "billing",
		Retry:     inbox.Retry{Attempts: attempts, First: time.Millisecond, Limit: 5 * time.Millisecond, Outage: -1},
		BatchSize: 8, StopTime: 5 * time.Second, Stats: new(inbox.Stats)}
	switch m {
	case one:
		c.Source, c.Handler = s.broker.Queue("orders"), s.tx(s.place.handle)
	case many:
		c.Source, c.Handler = s.broker.Queue("orders"), s.batch(s.place.handleAll)
	case positioned:
		c.Source, c.Handler, c.Checkpoint = s.broker.Log("orders", "billing", 1), s.batch(s.place.handleAll), true
	}
	return c
}

func (s *stand) publish(t testing.TB, ms ...*broker.Message) {
	t.Helper()
	if errs := s.broker.Publisher().Publish(t.Context(), ms); errs != nil {
		t.Fatal(errs)
	}
}

// notes returns messages of the orders.
func notes(from, to int, n note) (ms []*broker.Message) {
	for i := from; i < to; i++ {
		n.Seq = int64(i + 1)
		ms = append(ms, n.message("orders", fmt.Sprintf("m%d", i)))
	}
	return ms
}

// run runs a consumer until the test ends or stop is called. stop returns the
// error of Run.
func run(t testing.TB, c *inbox.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// handled waits until n messages are handled.
func (w *world) handled(t testing.TB, n int) {
	t.Helper()
	settled(t, patience, func() (open []string) {
		if left := n - len(w.counts(t)); left > 0 {
			open = append(open, fmt.Sprintf("%d of %d messages", left, n))
		}
		return open
	})
}

// onceEach checks that n messages were handled once each, and no others. It is
// called when all are settled.
func (w *world) onceEach(t testing.TB, n int) {
	t.Helper()
	counts := w.counts(t)
	switch len := len(counts); {
	case len < n:
		t.Errorf("%d of %d messages are lost", n-len, n)
	case len > n:
		t.Errorf("%d messages were handled, of %d that were published", len, n)
	}
	for id, times := range counts {
		if times != 1 {
			t.Errorf("%s was doubled: it was handled %d times", id, times)
		}
	}
}

func TestLostAcks(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) {
		const n = 20
		s.broker.LoseAcks(n)
		c := s.consumer(m)
		run(t, c)
		s.publish(t, notes(0, n, note{Kind: plain})...)
		await(t, "all came again, and were settled", func() bool {
			return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() == 2*n
		})
		s.onceEach(t, n)
	})
}

func TestStormOfCopies(t *testing.T) {
	for _, m := range []mode{one, many} {
		t.Run(string(m), func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *stand) {
				const copies = 64
				c := s.consumer(m)
				c.Concurrency, c.Window = 16, 64
				var storm []*broker.Message
				for range copies {
					storm = append(storm, notes(0, 1, note{Kind: plain})...)
				}
				s.publish(t, storm...)
				run(t, c)
				run(t, c)
				await(t, "all but one were recognised", func() bool { return c.Stats.Duplicates.Load() == copies-1 })
				await(t, "all are acknowledged", func() bool { return len(s.broker.Messages("orders")) == 0 })
				s.onceEach(t, 1)
			})
		})
	}
}

// TestBrokerRestartsInTheMiddle breaks all sessions after a handler has written
// and before the commit.
func TestBrokerRestartsInTheMiddle(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) {
		const n = 20
		var broke atomic.Int64
		c := s.consumer(m)
		if m == one {
			c.Handler = s.tx(func(ctx context.Context, tx rows, m *broker.Message) error {
				err := s.place.handle(ctx, tx, m)
				s.breakOnce(&broke)
				return err
			})
		} else {
			c.Handler = s.batch(func(ctx context.Context, tx rows, ms []*broker.Message) error {
				err := s.place.handleAll(ctx, tx, ms)
				s.breakOnce(&broke)
				return err
			})
		}
		s.publish(t, notes(0, n, note{Kind: plain})...)
		run(t, c)
		s.handled(t, n)
		await(t, "what came again was recognised", func() bool { return c.Stats.Duplicates.Load() > 0 })
		s.onceEach(t, n)
	})
}

func (s *stand) breakOnce(broke *atomic.Int64) {
	if broke.Add(1) == 1 {
		s.broker.Restart()
	}
}

func TestBusinessDuplicates(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) {
		c := s.consumer(m)
		c.Key = key
		c.Input = func(*broker.Message) []byte { return nil }
		run(t, c)
		for i := range 3 {
			s.publish(t, note{Kind: plain, Key: "order-7"}.message("orders", fmt.Sprint("other", i)))
		}
		await(t, "two were recognised", func() bool { return c.Stats.Duplicates.Load() == 2 })
		s.onceEach(t, 1)
	})
}

// TestVersions publishes events twice, late, too early, and after one that
// never comes.
func TestVersions(t *testing.T) {
	onModes(t, func(t *testing.T, s *stand, m mode) {
		s.Exec(t, "INSERT INTO projection (item, version) VALUES ('item', 0)")
		c := s.consumer(m)
		c.Retry.Attempts = 4
		run(t, c)
		for i, version := range []int64{2, 1, 1, 4, 3, 2, 6} {
			s.publish(t, note{Kind: event, Item: "item", Version: version}.message("orders", fmt.Sprint("e", i)))
		}
		admin := inbox.Admin{Store: s.store}
		await(t, "all are handled but the one behind the gap", func() bool {
			parked := s.shelf(t, store.Parked)
			if len(s.counts(t)) < 6 && len(parked) > 1 { // it waited in vain for those that are parked, too
				_, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "test", Reason: "order"})
				must(t, err)
			}
			return len(s.counts(t)) == 6 && len(parked) == 1 && len(s.shelf(t, store.Waiting)) == 0
		})
		last := int64(0)
		for _, e := range s.effects(t, "applied") {
			if e.seq != last+1 {
				t.Errorf("version %d came after %d", e.seq, last)
			}
			last = e.seq
		}
		if last != 4 {
			t.Errorf("the projection is at version %d", last)
		}
		s.onceEach(t, 6)
	})
}

// TestLogMadeAnew: the positions of a log do not apply to a recreated one, and
// the consumer stops.
func TestLogMadeAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, s *stand) {
		stop := run(t, s.consumer(positioned))
		s.publish(t, notes(0, 5, note{Kind: plain})...)
		s.handled(t, 5)
		must(t, stop())
		s.broker.Recreate("orders")
		s.publish(t, notes(5, 7, note{Kind: plain})...)
		ended := make(chan error, 1)
		go func() { ended <- s.consumer(positioned).Run(soon(t)) }()
		select {
		case err := <-ended:
			wantLogChanged(t, err)
		case <-time.After(testenv.Patience):
			t.Fatal("the consumer goes on")
		}
		s.onceEach(t, 5)
		s.goesOnWhereItIsTold(t)
	})
}

// goesOnWhereItIsTold sets the position as a person would.
func (s *stand) goesOnWhereItIsTold(t *testing.T) {
	admin := inbox.Admin{Store: s.store}
	ps, err := admin.Positions(t.Context(), "billing")
	must(t, err)
	session, err := s.broker.Log("orders", "looking", 1).Open(t.Context(), 1)
	must(t, err)
	ds, err := session.Receive(t.Context(), 1)
	must(t, err)
	must(t, session.Close(t.Context()))
	p := ps[0]
	p.Log, p.Offset, p.Digest = ds[0].Position.Log, ds[0].Position.Offset-1, [16]byte{}
	must(t, admin.SetPosition(t.Context(), p))
	run(t, s.consumer(positioned))
	s.handled(t, 7)
	s.onceEach(t, 7)
}

// TestStoreIsDown: without the store nothing is acknowledged and nothing is
// parked. Afterwards the consumer continues.
func TestStoreIsDown(t *testing.T) {
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			for _, engine := range []string{pgStore, mariaDB} {
				t.Run(engine, func(t *testing.T) { storeIsDown(t, engine, m) })
			}
		})
	}
}

func storeIsDown(t *testing.T, engine string, m mode) {
	const n = 12
	s, proxy, direct := behind(t, engine)
	c := s.consumer(m)
	stop := run(t, c)
	s.publish(t, notes(0, n/2, note{Kind: plain})...)
	direct.handled(t, n/2)
	acked := func() int64 { return c.Stats.Handled.Load() + c.Stats.Duplicates.Load() + c.Stats.Shelved.Load() }
	await(t, "the first half is settled", func() bool { return acked() == n/2 })
	proxy.Down()
	s.publish(t, notes(n/2, n, note{Kind: plain})...)
	await(t, "the other half has come", func() bool { return c.Stats.Received.Load() == n })
	pause(1500 * time.Millisecond) // long enough for more than one attempt at it
	if acked() != n/2 || c.Stats.Parked.Load() > 0 {
		t.Errorf("without a store, %d messages were dealt with and %d parked", acked()-n/2, c.Stats.Parked.Load())
	}
	proxy.Up()
	direct.handled(t, n)
	must(t, stop())
	direct.onceEach(t, n)
	if all := direct.shelf(t); len(all) > 0 {
		t.Errorf("on the shelf is %+v", all)
	}
}
