//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func findsNothing(context.Context, once.Key) (string, bool, error) { return "", false, nil }

// asked is a store in which somebody has asked about each unknown key before it is
// read, as a Reconciler does.
type asked struct {
	*memstore.Store
	op once.Operation[string]
}

func (s asked) Get(ctx context.Context, k once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, k)
	if err == nil && rec.Status == once.Unknown && k.Operation == s.op.Name {
		return s.op.Ask(ctx, s.Store, rec)
	}
	return rec, err
}

// A message that is handled whenever another one ends the process is tried alone
// before it is parked.
func TestAMessageBesideOneThatEndsItsProcessIsNotParked(t *testing.T) {
	for _, name := range []string{"unasked", "asked"} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var deaths, beside atomic.Int64
				ends := make(chan struct{})
				handle := func(_ context.Context, _ once.Key, m *broker.Message) (string, error) {
					if m.ID == "slow" {
						beside.Add(1)
						defer beside.Add(-1)
						select {
						case <-ends:
							runtime.Goexit()
						case <-time.After(3 * time.Second):
						}
						return "", nil
					}
					time.Sleep(time.Second)
					if deaths.Add(1) > 20 {
						return "", nil
					}
					if beside.Load() > 0 {
						ends <- struct{}{}
					}
					runtime.Goexit()
					return "", nil
				}
				op := &once.Operation[string]{Name: "mail", Lookup: findsNothing}
				c := doConsumer(b, op, handle)
				if name == "asked" {
					c.Handler = inbox.Do(asked{b.store, *op}, op, handle)
				}
				c.Retry = inbox.Retry{Attempts: 4}
				start(t, c)
				b.publish("orders", message("slow"), message("bad"))
				await(t, "the end", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() == 2 })
				for _, m := range b.onTheShelf(store.Parked) {
					if m.Message.ID == "slow" {
						t.Errorf("parked after %d deaths by the other one: %s", deaths.Load(), m.Reason)
					}
				}
				if n := deaths.Load(); n > 5 {
					t.Errorf("with 4 attempts, it ended %d processes", n)
				}
			})
		})
	}
}

// countsDown is a store in which counts of attempts cannot be read or written now
// and then.
type countsDown struct {
	*memstore.Store
	down    *atomic.Bool
	refused *atomic.Int64
}

func (s countsDown) refuses(k once.Key) bool {
	refuses := s.down.Load() && strings.HasSuffix(k.Operation, countsSuffix)
	if refuses {
		s.refused.Add(1)
	}
	return refuses
}

func (s countsDown) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if s.refuses(k) {
		return once.Record{}, errors.New("connection reset")
	}
	return s.Store.Get(ctx, k)
}

func (s countsDown) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if s.refuses(r.Key) {
		return once.Record{}, errors.New("connection reset")
	}
	return s.Store.Claim(ctx, r)
}

// failsInAnOutage has the last attempt at a message fail in an outage. What a store
// refuses from then on is known to the session alone, which ends.
func failsInAnOutage(t *testing.T, over func(countsDown) once.Store) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls, done, refused atomic.Int64
		var providerDown, refuses atomic.Bool
		providerDown.Store(true)
		op := &once.Operation[string]{Lookup: findsNothing}
		c := doConsumer(b, op, nil)
		st := over(countsDown{b.store, &refuses, &refused})
		c.Handler = inbox.Do(st, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			time.Sleep(time.Second)
			if providerDown.Load() {
				refuses.Store(calls.Add(1) == 4)
				return "", errors.New("the reply was lost")
			}
			done.Add(1)
			return "", nil
		})
		c.Retry = inbox.Retry{Attempts: 4}
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "the end of the last attempt", func() bool { return refused.Load() > 0 })
		b.broker.Restart()
		refuses.Store(false)
		await(t, "more attempts", func() bool { return calls.Load() >= 6 || c.Stats.Parked.Load() > 0 })
		providerDown.Store(false)
		await(t, "the end", func() bool { return done.Load() > 0 || c.Stats.Parked.Load() > 0 })
		for _, m := range b.onTheShelf(store.Parked) {
			t.Errorf("parked, and nothing has ended its process: %s", m.Reason)
		}
	})
}

// That the last attempt does not count cannot be written.
func TestAnAttemptThatFailedIsNotTakenForOneThatNeverEnded(t *testing.T) {
	failsInAnOutage(t, func(s countsDown) once.Store { return s })
}

// settlesDown is a store in which neither counts of attempts nor outcomes can be
// written now and then.
type settlesDown struct{ countsDown }

func (s settlesDown) Settle(ctx context.Context, set once.Settlement) error {
	if s.down.Load() {
		return errors.New("connection reset")
	}
	return s.countsDown.Settle(ctx, set)
}

// Nor can its outcome, until its lease has lapsed. Its process lives, and gets the
// message again.
func TestAnAttemptWhoseEndCouldNotBeRecordedIsNotTakenForOneThatNeverEnded(t *testing.T) {
	failsInAnOutage(t, func(s countsDown) once.Store { return settlesDown{s} })
}

// writesDown is a store that answers reads and refuses writes, as a database that is
// read-only for a while.
type writesDown struct {
	*memstore.Store
	down *atomic.Bool
}

var errReadOnly = errors.New("read-only")

func (s writesDown) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if s.down.Load() {
		return once.Record{}, errReadOnly
	}
	return s.Store.Claim(ctx, r)
}

func (s writesDown) Settle(ctx context.Context, set once.Settlement) error {
	if s.down.Load() {
		return errReadOnly
	}
	return s.Store.Settle(ctx, set)
}

func (s writesDown) Extend(ctx context.Context, f once.Fence, d time.Duration) error {
	if s.down.Load() {
		return errReadOnly
	}
	return s.Store.Extend(ctx, f, d)
}

func (s writesDown) Shelve(ctx context.Context, ms []store.Shelved) error {
	if s.down.Load() {
		return errReadOnly
	}
	return s.Store.Shelve(ctx, ms)
}

// The last attempt ends with an error, in this process, which goes on. Nothing can
// be written for a while: neither that end, nor the message on the shelf.
func TestTheEndOfAnAttemptIsRememberedUntilItsMessageIsParked(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		var down atomic.Bool
		calls := 0
		op := &once.Operation[string]{Lookup: findsNothing}
		c := doConsumer(b, op, nil)
		c.Handler = inbox.Do(writesDown{b.store, &down}, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			if calls++; calls == 2 {
				down.Store(true)
			}
			return "", errors.New("the card is unknown")
		})
		c.Retry = retryAtOnce(2)
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "the last attempt", func() bool { return down.Load() })
		time.Sleep(90 * time.Second)
		b.broker.Restart()
		down.Store(false)
		await(t, "it is parked", func() bool { return c.Stats.Parked.Load() > 0 })
		for _, m := range b.onTheShelf(store.Parked) {
			if strings.Contains(m.Reason, "never ended") {
				t.Errorf("after %d calls, each of which returned, it is parked: %s", calls, m.Reason)
			}
		}
	})
}
