package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// cut is a store that ends the goroutine of its caller at one of the calls that
// count attempts.
type cut struct {
	*memstore.Store
	at    int64 // the call, from 1 on
	after bool  // when it was applied
	calls atomic.Int64
}

func (s *cut) count(key once.Key, call func()) {
	if !strings.HasSuffix(key.Operation, "@@attempts") {
		call()
		return
	}
	dies := s.calls.Add(1) == s.at
	if dies && !s.after {
		runtime.Goexit()
	}
	call()
	if dies {
		runtime.Goexit()
	}
}

func (s *cut) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	s.count(r.Key, func() { rec, err = s.Store.Claim(ctx, r) })
	return rec, err
}

func (s *cut) Settle(ctx context.Context, set once.Settlement) (err error) {
	s.count(set.Key, func() { err = s.Store.Settle(ctx, set) })
	return err
}

func (s *cut) Transact(ctx context.Context, rs []once.ClaimRequest, body func(mtx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {
	s.count(rs[0].Key, func() { recs, err = s.Store.Transact(ctx, rs, body) })
	return recs, err
}

// A process that dies while it counts an attempt does not keep others from
// counting.
func TestAttemptsAreBoundedWhereverACountIsCut(t *testing.T) {
	for _, redelivered := range []bool{false, true} {
		for at := range int64(6) {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("redelivered %v, call %d, applied %v", redelivered, at+1, after), func(t *testing.T) {
					t.Parallel()
					onBench(t, func(t *testing.T, b *bench) {
						var entered atomic.Int64
						c := &inbox.Consumer{Name: "billing", Retry: retryAtOnce(4), Stats: new(inbox.Stats)}
						c.Handler = inbox.Tx[mtx](&cut{Store: b.store, at: at + 1, after: after}, func(context.Context, mtx, *broker.Message) error {
							entered.Add(1)
							return errors.New("not today")
						})
						c.Source = bent{Source: b.broker.Queue("orders"), arrive: func(d *broker.Delivery) { d.Redelivered = redelivered }}
						start(t, c)
						b.publish("orders", message("m0"))
						await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 || entered.Load() > 50 })
						if n := entered.Load(); n > 5 {
							t.Errorf("entered %d times with 4 attempts", n)
						}
					})
				})
			}
		}
	}
}

// An orderly stop takes back its own attempt, but no attempt that ended a
// process.
func TestAnOrderlyStopForgivesNoDeath(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onLongBench(t, func(t *testing.T, b *bench) {
				var calls, deaths atomic.Int64
				begun := make(chan struct{}, 1000)
				c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
					if calls.Add(1)%2 == 1 {
						deaths.Add(1)
						runtime.Goexit()
					}
					begun <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
				c.StopTime, c.Concurrency = time.Millisecond, 1
				b.publish("orders", message("m0"))
				for range 20 {
					stop := start(t, c)
					await(t, "begun, or parked", func() bool { return len(begun) > 0 || c.Stats.Parked.Load() > 0 })
					for len(begun) > 0 {
						<-begun
					}
					if err := stop(); err != nil {
						t.Fatal(err)
					}
					if c.Stats.Parked.Load() > 0 {
						break
					}
				}
				if n := deaths.Load(); c.Stats.Parked.Load() == 0 || n > 5 || n < 4 {
					t.Errorf("with 4 attempts, %d processes died, and %d messages are parked", n, c.Stats.Parked.Load())
				}
			})
		})
	}
}

// redelivered returns sources whose deliveries are all marked as redelivered.
func redelivered(s broker.Source) broker.Source {
	return bent{Source: s, arrive: func(d *broker.Delivery) { d.Redelivered, d.Message.Attempt = true, 2 }}
}

func (b *bench) status(t *testing.T, id string) once.Status {
	t.Helper()
	rec, err := b.store.Get(t.Context(), once.Key{Operation: "billing", ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Status
}

// A message that waits for another one was not tried, however many copies of it
// are delivered.
func TestCopiesOfAMessageThatWaitsAreNoAttempts(t *testing.T) {
	for _, sh := range shapes {
		if sh.log && sh.name != "log, keys" { // a position does not tell copies
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				c := sh.consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
				c.Source = redelivered(c.Source)
				start(t, c)
				b.publish("orders", ordered("bad", "k"))
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
				for i := range int64(12) {
					b.publish("orders", ordered("m0", "k"))
					await(t, "a copy", func() bool { return c.Stats.Shelved.Load()+c.Stats.Duplicates.Load()+c.Stats.Parked.Load()-1 > i })
				}
				if status := b.status(t, "m0"); status != once.Absent {
					t.Errorf("its handler has never run, and its key is %v", status)
				}
				if found := b.onTheShelf(store.Waiting); len(found) != 1 || found[0].Attempts != 0 {
					t.Errorf("on the shelf waits %+v", found)
				}
				by := inbox.Decision{By: "me", Reason: "a test order"}
				if _, err := (inbox.Admin{Store: b.store}).Discard(t.Context(), store.ShelfQuery{IDs: []string{"bad"}}, by); err != nil {
					t.Fatal(err)
				}
				await(t, "m0", func() bool { return b.count("m0") == 1 || c.Stats.Parked.Load() > 1 })
				for _, m := range b.onTheShelf(store.Parked) {
					t.Errorf("%s is parked: %s", m.Message.ID, m.Reason)
				}
			})
		})
	}
}

// A copy of a message that waits for a retry waits with it. A copy that the
// broker marks as a first delivery may be tried. After its attempts, the
// message on the shelf still has its own.
func TestACopyWaitsWithItsMessage(t *testing.T) {
	for _, sh := range shapes[:2] {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, redelivered %v", sh.name, known), func(t *testing.T) {
				t.Parallel()
				onBench(t, func(t *testing.T, b *bench) {
					var calls atomic.Int64
					c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error {
						calls.Add(1)
						return once.RetryAfter(time.Hour, errors.New("not today"))
					})
					if known {
						c.Source = redelivered(c.Source)
					}
					start(t, c)
					for i := range int64(12) {
						b.publish("orders", message("m0"))
						await(t, "it waits", func() bool {
							return c.Stats.Shelved.Load()+c.Stats.Parked.Load()+c.Stats.Duplicates.Load() > i
						})
					}
					if c.Stats.Parked.Load() > 0 || b.status(t, "m0") != once.Absent {
						t.Errorf("%d parked, and the key is %v: %+v", c.Stats.Parked.Load(), b.status(t, "m0"), b.onTheShelf())
					}
					if n := calls.Load(); known && n != 1 {
						t.Errorf("it was tried %d times before its time", n)
					}
				})
			})
		}
	}
}

// A transaction that was rolled back has no unknown outcome.
func TestNothingIsUnknownAboutATransaction(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error {
					return once.Permanent(fmt.Errorf("a step before: %w: %w", once.ErrOutcomeUnknown, once.ErrParked))
				})
				start(t, c)
				b.shelve("billing", message("m0"))
				b.publish("orders", message("m1"))
				await(t, "both parked", func() bool { return c.Stats.Parked.Load() == 2 })
				// A person has them tried again, without a word about what happened.
				tally, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"})
				if err != nil || tally.Changed != 2 || tally.Unknown != 0 {
					t.Error(tally, err)
				}
			})
		})
	}
}

// A message that ends its process does so for its attempts and one first
// delivery, wherever it is in a batch.
func TestADeadlyMessageInABatchIsBounded(t *testing.T) {
	for _, sh := range shapes[1:] {
		for _, place := range []int{0, 1, 21, 37, 62, 63} {
			t.Run(fmt.Sprint(sh.name, " ", place), func(t *testing.T) {
				t.Parallel()
				onLongBench(t, func(t *testing.T, b *bench) {
					var deaths atomic.Int64
					dead := make(chan struct{}, 100)
					c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
						if m.ID == "bad" {
							deaths.Add(1)
							dead <- struct{}{}
							runtime.Goexit()
						}
						return b.effect(ctx, tx, m)
					})
					c.BatchSize, c.Concurrency, c.Window = 64, 1, 256
					if c.Source = b.broker.Queue("alone"); sh.log {
						c.Source = b.broker.Log("alone", "billing", 1)
					}
					ms := numbered(130)
					ms[place] = message("bad")
					b.publish("alone", ms...)
					stopped := make(chan struct{})
					var restarts sync.WaitGroup
					restarts.Add(1)
					go func() { // what a process had that died is delivered again
						defer restarts.Done()
						for {
							select {
							case <-dead:
								b.broker.Restart()
							case <-stopped:
								return
							}
						}
					}()
					start(t, c)
					await(t, "all others", func() bool { return deaths.Load() > 30 || c.Stats.Parked.Load() == 1 && b.effects() == 129 })
					close(stopped)
					restarts.Wait()
					if n := deaths.Load(); n > 5 || n < 4 {
						t.Errorf("with 4 attempts, %d processes died", n)
					}
					for _, m := range b.onTheShelf() {
						if m.Message.ID != "bad" {
							t.Errorf("%s is on the shelf: %s", m.Message.ID, m.Reason)
						}
					}
				})
			})
		}
	}
}

// effects returns the number of messages with an effect.
func (b *bench) effects() (n int) {
	for i := range 130 {
		n += b.count(fmt.Sprint("m", i))
	}
	return n
}

// The first delivery of a copy is not counted before it starts, because nothing
// says that another copy was delivered before.
func TestEachCopyOfADeadlyMessageHasOneUncountedDelivery(t *testing.T) {
	for _, sh := range shapes {
		if sh.log { // a position skips the second copy's attempts
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				var deaths atomic.Int64
				c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error {
					if deaths.Add(1) <= 30 {
						runtime.Goexit()
					}
					return nil
				})
				c.BatchSize, c.Concurrency = 1, 1
				b.publish("orders", message("bad"), message("bad"))
				start(t, c)
				await(t, "the message is parked", func() bool { return deaths.Load() > 30 || c.Stats.Parked.Load() > 0 })
				if n := deaths.Load(); n > 4+2 || n < 4 {
					t.Errorf("with 4 attempts and 2 copies, it ended %d goroutines", n)
				}
			})
		})
	}
}

// This also holds far from the beginning of a session, where no earlier owner of
// the partition can have received a message.
func TestAHandlerThatEndsItsGoroutineIsBounded(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onLongBench(t, func(t *testing.T, b *bench) {
				var deaths atomic.Int64
				c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
					if m.ID == "bad" && deaths.Add(1) <= 30 {
						runtime.Goexit()
					}
					return b.effect(ctx, tx, m)
				})
				c.BatchSize, c.Concurrency, c.Window = 2, 1, 4
				if c.Source = b.broker.Queue("alone"); sh.log {
					c.Source = b.broker.Log("alone", "billing", 1)
				}
				ms := numbered(20)
				ms[18] = message("bad")
				b.publish("alone", ms...)
				start(t, c)
				await(t, "all others", func() bool { return deaths.Load() > 30 || c.Stats.Parked.Load() == 1 && b.effects() == 19 })
				if n := deaths.Load(); n > 5 || n < 4 {
					t.Errorf("with 4 attempts, it ended %d goroutines", n)
				}
			})
		})
	}
}

// A message that ends its process is redelivered, and would end all processes
// without a limit.
func TestAMessageThatEndsItsProcessIsParked(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		var deaths atomic.Int64
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				deaths.Add(1)
				runtime.Goexit() // as far as the store and the broker can tell, the process is gone
			}
			return nil
		})
		start(t, c)
		ms := append(numbered(30), message("bad"))
		for i := range ms {
			ms[i].OrderingKey = "k" // one lane, so that a batch has all of them
		}
		b.publish("orders", append([]*broker.Message{ms[30]}, ms[:30]...)...)
		for seen := int64(0); c.Stats.Parked.Load() == 0; {
			await(t, "a death or the end", func() bool { return deaths.Load() > seen || c.Stats.Parked.Load() > 0 })
			if seen++; deaths.Load() < seen {
				break
			}
			if seen > 20 {
				t.Fatal("it dies for ever")
			}
			b.broker.Restart()
		}
		if deaths.Load() < 4 {
			t.Errorf("parked after %d deaths, 4 attempts are allowed", deaths.Load())
		}
		if b.count("bad") != 0 {
			t.Error("it left an effect")
		}
	})
}
