//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

const countsSuffix = "@@attempts"

// halfWritten is a store in which counts of attempts are claimed and not settled,
// or cannot be read, as if the process of each call had died, or its network.
type halfWritten struct {
	*memstore.Store
	settles, reads func() error
}

func (s *halfWritten) Settle(ctx context.Context, set once.Settlement) error {
	if s.settles != nil && strings.HasSuffix(set.Key.Operation, countsSuffix) {
		if err := s.settles(); err != nil {
			return err
		}
	}
	return s.Store.Settle(ctx, set)
}

func (s *halfWritten) Get(ctx context.Context, key once.Key) (once.Record, error) {
	if s.reads != nil && strings.HasSuffix(key.Operation, countsSuffix) {
		if err := s.reads(); err != nil {
			return once.Record{}, err
		}
	}
	return s.Store.Get(ctx, key)
}

// outages are short enough for a message to stay with its session, and long enough
// for it to wait on the shelf.
var outages = []time.Duration{2 * time.Minute, 20 * time.Minute}

// outlasts has a message fail in an outage, and a few times more by itself
// after others got through. It must be handled at last, and leave no claim.
func outlasts(t *testing.T, b *bench, lasts time.Duration, wrap func(dep *dependency) once.Store) {
	t.Helper()
	const attempts, own = 5, 3
	dep := &dependency{err: errors.New("the dependency is down")}
	dep.down.Store(true)
	var failed atomic.Int64
	c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
	c.Retry.Attempts = attempts
	c.Handler = inbox.Do(wrap(dep), &once.Operation[string]{OnUnknown: once.Resend}, func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
		if !dep.down.Load() && m.ID == "m0" && failed.Add(1) <= own {
			return "", once.NotDone(errors.New("it fails by itself"))
		}
		if err := dep.call(m); err != nil {
			return "", once.NotDone(err)
		}
		return "", nil
	})
	start(t, c)
	b.publish("orders", message("m0"))
	time.Sleep(lasts)
	dep.down.Store(false)
	for i := range 30 {
		b.publish("orders", message(fmt.Sprint("other", i)))
	}
	sleepUntil(time.Minute, func() bool { return c.Stats.Handled.Load() > 0 })
	b.broker.Restart() // what the session knew is gone
	done := func() bool {
		rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: "m0"})
		return err == nil && rec.Status == once.Done
	}
	if !sleepUntil(20*time.Minute, done) {
		t.Error("it is not handled")
	}
	for _, m := range b.onTheShelf(store.Parked) {
		t.Errorf("%s is parked after it failed %d times by itself: %s", m.Message.ID, min(failed.Load(), own), m.Reason)
	}
	time.Sleep(time.Minute) // leases lapse
	page, err := b.store.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running, once.Unknown}})
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range page.Records {
		if strings.HasSuffix(rec.Key.Operation, countsSuffix) {
			t.Errorf("%v is %v, and nobody looks at it again", rec.Key, rec.Status)
		}
	}
}

// An excuse that a process has begun to write counts, whether the process dies,
// or the reply of the store is lost. What cannot be read accuses nobody.
func TestAnExcuseIsNotLostHalfWritten(t *testing.T) {
	fails := map[string]func(n int64) bool{
		"always":      func(int64) bool { return true },
		"every other": func(n int64) bool { return n%2 == 0 },
	}
	for what, fails := range fails {
		for _, of := range []string{"settle", "read"} {
			for _, lasts := range outages {
				t.Run(fmt.Sprint(of, " fails ", what, ", ", lasts), func(t *testing.T) {
					onQuietBench(t, func(t *testing.T, b *bench) {
						outlasts(t, b, lasts, func(dep *dependency) once.Store {
							n := new(atomic.Int64)
							fail := func(when bool) error {
								if when && fails(n.Add(1)) {
									return errors.New("connection reset")
								}
								return nil
							}
							return &halfWritten{Store: b.store,
								settles: func() error { return fail(of == "settle" && dep.down.Load()) },
								reads:   func() error { return fail(of == "read" && !dep.down.Load()) }}
						})
					})
				})
			}
		}
	}
}

// A message comes with its attempts used up by an outage, from a process that died
// before it could say so. It is tried again. If others get through, it is parked.
func TestAttemptsThatAreUsedUpAccuseNobodyAlone(t *testing.T) {
	const used = 10
	spend := func(t *testing.T, st *memstore.Store, operation string, reason string) {
		key := once.Key{Operation: operation, ID: "m0"}
		for range used {
			claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: name.Token()}, Lease: time.Minute}
			rec, err := st.Claim(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			claim.Attempt = rec.Attempt
			err = st.Settle(t.Context(), once.Settlement{Fence: claim.Fence, Status: once.Absent, KeepKey: 24 * time.Hour, Reason: reason})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, poison := range []bool{false, true} {
		for _, from := range []string{"broker", "shelf"} {
			t.Run(fmt.Sprintf("from the %s, poison %v", from, poison), func(t *testing.T) {
				inEachShape(t, func(t *testing.T, b *bench, consumer func(func(*broker.Message) error) *inbox.Consumer) {
					dep := &dependency{err: errors.New("the dependency is down")}
					dep.down.Store(true)
					var calls atomic.Int64
					c := consumer(func(m *broker.Message) error {
						if m.ID != "m0" {
							return nil
						}
						if calls.Add(1); poison {
							return errors.New("poison")
						}
						return dep.call(m)
					})
					c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { d.Redelivered, d.Message.Attempt = true, 2 }}
					m := message("m0")
					if from == "shelf" {
						m.Topic = "orders"
						waiting := store.Shelved{Consumer: "billing", Key: m.ID, Message: *m, State: store.Waiting, Attempts: used, Reason: "down"}
						if err := b.store.Shelve(t.Context(), []store.Shelved{waiting}); err != nil {
							t.Fatal(err)
						}
					} else {
						spend(t, b.store, "billing", "nothing happened")
						spend(t, b.store, "billing"+countsSuffix, fmt.Sprintf("attempts: %d, failed: %d", used, used))
						b.publish("orders", m)
					}
					start(t, c)
					if poison {
						for i := range 60 {
							time.Sleep(5 * time.Second)
							b.publish("orders", message(fmt.Sprint("other", i)))
						}
						if n := calls.Load(); c.Stats.Parked.Load() != 1 || n > 2*used {
							t.Errorf("%d are parked after %d attempts", c.Stats.Parked.Load(), n)
						}
						return
					}
					time.Sleep(10 * time.Minute)
					dep.down.Store(false)
					if !sleepUntil(5*time.Minute, func() bool { return b.count("m0") == 1 }) {
						t.Errorf("it is not handled; the shelf has %+v", b.onTheShelf())
					}
				})
			})
		}
	}
}

// An attempt at an effect that is told to stop, because its process ends, does not
// count.
func TestAnEffectThatIsStoppedIsNoAttempt(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		var stops atomic.Bool
		stops.Store(true)
		consumer := func() *inbox.Consumer {
			c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
			c.Retry = inbox.Retry{Attempts: 3, Outage: -1}
			c.Handler = inbox.Do(b.store, &once.Operation[string]{OnUnknown: once.Park}, func(ctx context.Context, _ once.Key, m *broker.Message) (string, error) {
				b.called(m)
				if stops.Load() {
					<-ctx.Done()
					return "", once.NotDone(ctx.Err())
				}
				return "", nil
			})
			return c
		}
		b.broker.Queue("orders")
		b.publish("orders", message("m0"))
		for range 6 {
			stop := start(t, consumer())
			time.Sleep(time.Minute)
			_ = stop()
			b.broker.Restart()
		}
		stops.Store(false)
		c := consumer()
		start(t, c)
		if !sleepUntil(5*time.Minute, func() bool { return c.Stats.Handled.Load() == 1 }) {
			t.Errorf("it is not handled; the shelf has %+v", b.onTheShelf())
		}
	})
}

// withoutCounts is a store whose counts of excused attempts cannot be read.
type withoutCounts struct {
	*memstore.Store
	why *atomic.Pointer[error] // nil: they can
}

func (s withoutCounts) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if why := s.why.Load(); why != nil && k.Operation != "billing" {
		return once.Record{}, *why
	}
	return s.Store.Get(ctx, k)
}

// A count of excuses that is damaged excuses nothing: else a poisonous message
// would be tried without end. While the count cannot be read for another reason,
// nobody knows whether the attempts are used up.
func TestACountThatCannotBeRead(t *testing.T) {
	for name, why := range map[string]error{"damaged": once.ErrCorrupt, "the store fails": errors.New("connection refused")} {
		t.Run(name, func(t *testing.T) {
			onLongBench(t, func(t *testing.T, b *bench) {
				s := withoutCounts{b.store, new(atomic.Pointer[error])}
				s.why.Store(&why)
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"),
					Retry: inbox.Retry{Attempts: 3, First: time.Second, Limit: 2 * time.Second}, Stats: new(inbox.Stats)}
				c.Handler = inbox.Do(s, &once.Operation[string]{OnUnknown: once.Park}, func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
					if m.ID != "poison" {
						return "", nil
					}
					return "", once.NotDone(errors.New("poison"))
				})
				start(t, c)
				b.publish("orders", message("poison"))
				others := func() {
					for i := range 5 {
						b.publish("orders", message(fmt.Sprint(time.Now().Unix(), i)))
						time.Sleep(time.Minute)
					}
				}
				others()
				if n, want := c.Stats.Parked.Load(), map[string]int64{"damaged": 1}[name]; n != want {
					t.Errorf("%d messages are parked, want %d", n, want)
				}
				s.why.Store(nil)
				others()
				if n := c.Stats.Parked.Load(); n != 1 {
					t.Errorf("%d messages are parked in the end", n)
				}
			})
		})
	}
}
