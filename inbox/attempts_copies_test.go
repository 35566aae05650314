//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// A copy that waits for the handler of another copy has not begun. However many
// copies wait, and for however long, the message is handled once.
func TestCopiesOfAMessageThatIsBeingHandledAreNoAttempts(t *testing.T) {
	for _, sh := range shapes {
		if sh.log { // the owner of a partition has all its messages, and a position tells them apart
			continue
		}
		for _, attempts := range []int{1, 2, 10} {
			for _, first := range []bool{true, false} { // whether the running attempt is of a first delivery
				t.Run(fmt.Sprintf("%s, %d attempts, first delivery %v", sh.name, attempts, first), func(t *testing.T) {
					t.Parallel()
					onBench(t, func(t *testing.T, b *bench) {
						var begun atomic.Int64
						handle := func(ctx context.Context, tx mtx, m *broker.Message) error {
							begun.Add(1)
							time.Sleep(2 * time.Minute)
							return b.effect(ctx, tx, m)
						}
						var stats []*inbox.Stats
						for range 3 {
							c := sh.consumer(b, handle)
							c.Retry, c.Concurrency = retryAtOnce(attempts), 8
							c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) {
								d.Redelivered = !first || begun.Load() > 0
								d.Message.Attempt = 2
								if !d.Redelivered {
									d.Message.Attempt = 1
								}
							}}
							start(t, c)
							stats = append(stats, c.Stats)
						}
						b.publish("orders", message("m0"))
						await(t, "it is begun", func() bool { return begun.Load() > 0 })
						const copies = 16
						for range copies {
							b.publish("orders", message("m0"))
						}
						settled := func() (n int64) {
							for _, s := range stats {
								n += s.Handled.Load() + s.Duplicates.Load() + s.Parked.Load()
							}
							return n
						}
						for range 600 { // seconds, of fake time
							if settled() == copies+1 {
								break
							}
							time.Sleep(time.Second)
						}
						if n := settled(); n != copies+1 {
							t.Errorf("%d of %d copies are settled", n, copies+1)
						}
						for _, m := range b.onTheShelf(store.Parked) {
							t.Errorf("parked: %s", m.Reason)
						}
						if n := b.count("m0"); n != 1 || b.status(t, "m0") != once.Done {
							t.Errorf("it has %d effects, and its key is %v", n, b.status(t, "m0"))
						}
					})
				})
			}
		}
	}
}

// The reason of a parked message says how often it failed, and how often an
// attempt did not end, and confuses neither.
func TestAReasonTellsFailuresFromAttemptsThatNeverEnded(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				var calls atomic.Int64
				died := make(chan struct{}, 10)
				c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error {
					if calls.Add(1) < 4 {
						return errors.New("not today")
					}
					died <- struct{}{}
					runtime.Goexit()
					return nil
				})
				c.Source = redelivered(c.Source)
				b.publish("orders", message("m0"))
				start(t, c)
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 || calls.Load() > 6 })
				parked := b.onTheShelf(store.Parked)
				if len(parked) != 1 {
					t.Fatalf("after %d attempts, %d messages are parked", calls.Load(), len(parked))
				}
				reason := parked[0].Reason
				want := "failed 3 times, and was begun once more, at last alone, and never ended"
				if sh.log { // on the shelf
					want = "attempt 4: begun, and never ended: it may end its process. Before that: not today"
				}
				if !strings.Contains(reason, want) {
					t.Errorf("three attempts failed, and the last did not end: %s", reason)
				}
			})
		})
	}
}

// The same for effects, whose keys are claimed before they begin.
func TestCopiesOfAnEffectThatIsRunningAreNoAttempts(t *testing.T) {
	for _, attempts := range []int{1, 2} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var begun atomic.Int64
				op := &once.Operation[string]{OnUnknown: once.Park}
				var stats []*inbox.Stats
				for range 2 {
					c := &inbox.Consumer{Name: "billing", Retry: retryAtOnce(attempts), Stats: new(inbox.Stats)}
					c.Handler = inbox.Do(b.store, op, func(context.Context, once.Key, *broker.Message) (string, error) {
						begun.Add(1)
						time.Sleep(2 * time.Minute)
						return "", nil
					})
					c.Source = redelivered(b.broker.Queue("orders"))
					start(t, c)
					stats = append(stats, c.Stats)
				}
				for range 16 {
					b.publish("orders", message("m0"))
				}
				settled := func() (n int64) {
					for _, s := range stats {
						n += s.Handled.Load() + s.Duplicates.Load() + s.Parked.Load()
					}
					return n
				}
				for i := 0; i < 600 && settled() < 16; i++ {
					time.Sleep(time.Second)
				}
				if n := settled(); n != 16 || begun.Load() != 1 || len(b.onTheShelf(store.Parked)) > 0 {
					t.Errorf("%d of 16 are settled, %d begun, on the shelf: %+v", n, begun.Load(), b.onTheShelf())
				}
			})
		})
	}
}

// A copy that waits for its message holds up no other message of its batch.
func TestACopyThatWaitsHoldsUpNoOther(t *testing.T) {
	for _, attempts := range []int{1, 2, 10} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				begun := make(chan struct{}, 10)
				handle := func(ctx context.Context, tx mtx, m *broker.Message) error {
					if m.ID == "slow" {
						begun <- struct{}{}
						time.Sleep(10 * time.Minute)
					}
					return b.effect(ctx, tx, m)
				}
				sh := shapes[1] // in batches
				first := sh.consumer(b, handle)
				first.Source = redelivered(first.Source)
				first.Retry = retryAtOnce(attempts)
				stop := start(t, first)
				b.publish("orders", message("slow"))
				<-begun
				second := sh.consumer(b, handle)
				second.SharedWith = "membroker queue orders"
				second.Retry, second.Source, second.Concurrency = retryAtOnce(attempts), redelivered(b.broker.Queue("others")), 1
				b.broker.Queue("others")
				b.publish("others", message("slow"), message("m0"), message("m1"))
				start(t, second)
				time.Sleep(time.Minute)
				if b.count("m0") != 1 || b.count("m1") != 1 {
					t.Error("messages beside the copy are not handled")
				}
				for i := 0; i < 900 && first.Stats.Handled.Load() == 0; i++ {
					time.Sleep(time.Second)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if n := b.count("slow"); n != 1 || len(b.onTheShelf(store.Parked)) > 0 {
					t.Errorf("handled %d times; on the shelf: %+v", n, b.onTheShelf())
				}
			})
		})
	}
}
