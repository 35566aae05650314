//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// A worker handles the next message while the broker takes its time.
func TestNoWorkerWaitsForAnAck(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		answer := make(chan struct{})
		var calls atomic.Int64
		c := shapes[0].consumer(b, b.effect)
		c.Concurrency, c.Window = 1, 5
		c.Source = bent{Source: b.broker.Queue("orders"), ack: func([]broker.Delivery) error {
			calls.Add(1)
			<-answer
			return nil
		}}
		stop := start(t, c)
		b.publish("orders", numbered(8)...)
		await(t, "a window, handled during the first ack", func() bool { return c.Stats.Handled.Load() == 5 })
		if n := calls.Load(); n != 1 {
			t.Errorf("%d acks at a time", n)
		}
		close(answer)
		await(t, "the rest", func() bool { return c.Stats.Handled.Load() == 8 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if left := len(b.broker.Messages("orders")); left != 0 {
			t.Errorf("Run returned before %d messages were acknowledged", left)
		}
	})
}

// A session is not closed while an ack is on its way, which would lose it.
func TestRunEndsAfterItsAcks(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		begun, answer := make(chan struct{}), make(chan struct{})
		c := shapes[0].consumer(b, b.effect)
		c.Source = bent{Source: b.broker.Queue("orders"), ack: func([]broker.Delivery) error {
			close(begun)
			<-answer
			return nil
		}}
		stop := start(t, c)
		b.publish("orders", message("m0"))
		<-begun
		stopped := make(chan error)
		go func() { stopped <- stop() }()
		select {
		case <-stopped:
			t.Error("Run has returned during an ack")
		case <-time.After(100 * time.Millisecond):
			close(answer)
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
		}
		if left := len(b.broker.Messages("orders")); left != 0 {
			t.Errorf("%d messages come again", left)
		}
	})
}

// One delivery that cannot be acknowledged does not count for those that were
// settled with it, neither if the error says so nor if the others, which were
// settled, fail the second time.
func TestOneAckThatFailsLeavesTheOthers(t *testing.T) {
	for name, lost := range map[string]error{
		"lost": fmt.Errorf("one is lost: %w", broker.ErrSettled),
		"ill":  errors.New("the broker is not well"),
	} {
		t.Run(name, func(t *testing.T) {
			expected := int64(2) // the first, and the others together
			if name == "ill" {
				expected += 14 + 2 // each of those alone, and m3 twice more
			}
			onBench(t, func(t *testing.T, b *bench) {
				first, answer := make(chan struct{}), make(chan struct{})
				var calls, opened atomic.Int64
				var mu sync.Mutex
				settled, ill := make(map[string]bool), 0
				c := shapes[0].consumer(b, b.effect)
				c.Concurrency, c.Window = 1, 20
				source := bent{Source: b.broker.Queue("orders"), ack: func(ds []broker.Delivery) error {
					if calls.Add(1) == 1 {
						close(first)
						<-answer
					}
					mu.Lock()
					defer mu.Unlock()
					var errs []error
					for _, d := range ds {
						switch {
						case d.Message.ID == "m3" && ill < 3:
							ill++
							errs = append(errs, lost)
						case settled[d.Message.ID]:
							errs = append(errs, broker.ErrSettled)
						}
						settled[d.Message.ID] = d.Message.ID != "m3"
					}
					return errors.Join(errs...)
				}}
				c.Source = openings{source, &opened}
				stop := start(t, c)
				b.publish("orders", message("before"))
				<-first
				b.publish("orders", numbered(14)...)
				await(t, "all handled", func() bool { return c.Stats.Handled.Load() == 15 })
				close(answer)
				await(t, "the broker has refused as often as it is asked", func() bool { return calls.Load() >= expected })
				b.publish("orders", message("later"))
				await(t, "a later one", func() bool { return c.Stats.Handled.Load() == 16 })
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if sessions, n := opened.Load(), calls.Load(); sessions != 1 || n != expected+1 {
					t.Errorf("%d acks in %d sessions, want %d in one", n, sessions, expected+1)
				}
			})
		})
	}
}

// A delivery that the broker cannot settle holds up no others.
func TestASettlementThatHangsHoldsUpNoOther(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var mended atomic.Bool
		c := shapes[0].consumer(b, b.effect)
		c.Window = 4
		c.Source = bent{Source: b.broker.Queue("orders"), stuck: func(d broker.Delivery) bool { return d.Message.ID == "m0" && !mended.Load() }}
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "the first", func() bool { return c.Stats.Handled.Load() == 1 })
		time.Sleep(10*time.Second + time.Millisecond) // until the call has ended that the others might have been in
		begun := time.Now()
		for i, m := range numbered(20)[1:] {
			b.publish("orders", m)
			await(t, "the message and its ack", func() bool { return len(b.broker.Messages("orders")) == 1 && b.count(m.ID) == 1 })
			if took := time.Since(begun); took > 5*time.Second {
				t.Fatalf("%d acks took %v while one other was stuck", i+1, took)
			}
		}
		mended.Store(true)
		await(t, "the one that was stuck", func() bool { return len(b.broker.Messages("orders")) == 0 })
	})
}

// A broker that cannot take a dead letter for a while, for example because its
// place is missing, gets it later from the same session, which goes on meanwhile.
// The deliveries that were settled with it are not settled again.
func TestADeadLetterThatFailsIsTriedAgain(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var mended atomic.Bool
		var opened, acks, rejections atomic.Int64
		c := shapes[1].consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
		c.Concurrency, c.BatchSize, c.Window = 1, 8, 8
		source := bent{
			Source: b.broker.Queue("orders"),
			ack: func(ds []broker.Delivery) error {
				acks.Add(int64(len(ds)))
				return nil
			},
			reject: func([]broker.Delivery) error {
				if rejections.Add(1); !mended.Load() {
					return errors.New("there is no place for dead letters")
				}
				return nil
			},
		}
		c.Source = openings{source, &opened}
		ms := numbered(8)
		ms[3] = message("bad")
		b.publish("orders", ms...)
		start(t, c)
		await(t, "the others", func() bool { return c.Stats.Handled.Load() == 7 && c.Stats.Parked.Load() == 1 })
		time.Sleep(10 * time.Minute)
		if n := rejections.Load(); n < 20 || n > 200 {
			t.Errorf("%d tries in ten minutes", n)
		}
		b.publish("orders", message("later"))
		await(t, "a later one", func() bool { return len(b.broker.Messages("orders")) == 1 })
		mended.Store(true)
		await(t, "the dead letter", func() bool { return len(b.broker.Messages("orders.dead")) == 1 })
		if sessions, n := opened.Load(), acks.Load(); sessions != 1 || n != 8 {
			t.Errorf("%d acks of 8 messages in %d sessions, want 8 in one", n, sessions)
		}
	})
}

// A place for dead letters that does not answer does not hold up the messages that
// were handled with the bad one.
func TestAcksDoNotWaitForDeadLetters(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		answer := make(chan struct{})
		c := shapes[1].consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
		c.Concurrency, c.BatchSize, c.Window = 1, 8, 8
		c.Source = bent{Source: b.broker.Queue("orders"), reject: func([]broker.Delivery) error {
			<-answer
			return nil
		}}
		b.publish("orders", append(numbered(7), message("bad"))...)
		start(t, c)
		await(t, "the acks of the others", func() bool { return c.Stats.Parked.Load() == 1 && len(b.broker.Messages("orders")) == 1 })
		close(answer)
		await(t, "the dead letter", func() bool { return len(b.broker.Messages("orders.dead")) == 1 })
	})
}

// A broker that does not answer holds up the end of Run no longer than a write to
// the store may take. What it did not acknowledge comes again.
func TestRunEndsInTimeIfTheBrokerDoesNotAnswer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, b.effect)
		c.Window = 50
		c.Source = bent{Source: b.broker.Queue("orders"), stuck: func(broker.Delivery) bool { return true }}
		stop := start(t, c)
		b.publish("orders", numbered(10)...)
		await(t, "all handled", func() bool { return c.Stats.Handled.Load() == 10 })
		begun := time.Now()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("Run took %v to end", took)
		}
		if left := len(b.broker.Messages("orders")); left != 10 {
			t.Errorf("%d of 10 messages come again", left)
		}
		c.Source, c.Stats = b.broker.Queue("orders"), new(inbox.Stats)
		start(t, c)
		await(t, "they are known", func() bool { return c.Stats.Duplicates.Load() == 10 })
		b.allOnce(t, 10)
	})
}

// openings is a source that counts its sessions.
type openings struct {
	broker.Source
	n *atomic.Int64
}

func (o openings) Open(ctx context.Context, window int) (broker.Session, error) {
	o.n.Add(1)
	return o.Source.Open(ctx, window)
}

// Acknowledgements that fail in every way, among stops and sessions that break,
// double nothing, lose nothing, and keep each ordering key in order.
func TestAcksThatFailInEveryWay(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		const messages, keys = 300, 5
		seed := rand.Uint64()
		t.Log("seed", seed)
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(seed, 0))
		chance := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(n)
		}
		c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if chance(40) == 0 {
				return errors.New("not now")
			}
			b.add(tx, m.ID)
			was, _ := tx.Get(m.OrderingKey)
			tx.Set(m.OrderingKey, was+m.ID+" ")
			return nil
		})
		c.Retry.Attempts, c.Window, c.StopTime = 1000, 20, time.Second
		c.Source = failing{c.Source, chance}
		want := make(map[string]string)
		ms := numbered(messages)
		for i, m := range ms {
			m.OrderingKey = fmt.Sprint("key", i%keys)
			want[m.OrderingKey] += m.ID + " "
		}
		for len(ms) > 0 {
			stop := start(t, c)
			for range 3 {
				n := min(len(ms), 20)
				b.publish("orders", ms[:n]...)
				ms = ms[n:]
				time.Sleep(time.Duration(chance(3000)) * time.Millisecond)
				if chance(3) == 0 {
					b.broker.Restart()
				}
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
		start(t, c)
		for key, in := range want {
			await(t, "all of "+key, func() bool { v, _ := b.store.Value(key); return len(v) >= len(in) })
			if v, _ := b.store.Value(key); v != in {
				t.Errorf("%s has %s, want %s", key, v, in)
			}
		}
		b.allOnce(t, messages)
		await(t, "all are acknowledged", func() bool { return sh.log || len(b.broker.Messages("orders")) == 0 })
	})
}

// failing is a source whose acknowledgements fail at random.
type failing struct {
	broker.Source
	chance func(n int) int
}

func (f failing) Open(ctx context.Context, window int) (broker.Session, error) {
	in, err := f.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return failingSession{bentSession{in, bent{}}, f.chance}, nil
}

type failingSession struct {
	bentSession
	chance func(n int) int
}

func (s failingSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	some := ds[:s.chance(len(ds)+1)]
	ill := errors.New("the broker is not well")
	switch s.chance(8) {
	case 0: // nothing is settled
		return ill
	case 1: // the reply is lost
		return errors.Join(s.Session.Ack(ctx, ds), ill)
	case 2: // some are settled
		return errors.Join(s.Session.Ack(ctx, some), ill)
	case 3: // it hangs
		<-ctx.Done()
		return ctx.Err()
	case 4: // the locks of some are lost, and they come again
		return errors.Join(s.Session.Return(ctx, some, 0), s.Session.Ack(ctx, ds))
	}
	return s.Session.Ack(ctx, ds)
}

// hollow is an error that joins none, as some clients return it.
type hollow struct{}

func (hollow) Error() string   { return "the broker is not well" }
func (hollow) Unwrap() []error { return nil }

// An error that does not say that a delivery was settled before has it settled again.
func TestAnErrorThatSaysNothingIsNoSettlement(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		queue := b.broker.Queue("orders")
		var calls atomic.Int64
		c := shapes[0].consumer(b, b.effect)
		c.Source = bent{Source: queue, ack: func([]broker.Delivery) error {
			if calls.Add(1) == 1 {
				return hollow{}
			}
			return nil
		}}
		stop := start(t, c)
		b.publish("orders", message("m"))
		await(t, "the second ack", func() bool { return calls.Load() == 2 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}
