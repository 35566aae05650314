package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
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
				expected += 14 + 1 // each of those alone, and m3 once more
			}
			onBench(t, func(t *testing.T, b *bench) {
				first, answer := make(chan struct{}), make(chan struct{})
				var calls, opened atomic.Int64
				var mu sync.Mutex
				settled := make(map[string]bool)
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
						case d.Message.ID == "m3":
							errs = append(errs, lost)
						case settled[d.Message.ID]:
							errs = append(errs, broker.ErrSettled)
						}
						settled[d.Message.ID] = true
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

// openings is a source that counts its sessions.
type openings struct {
	broker.Source
	n *atomic.Int64
}

func (o openings) Open(ctx context.Context, window int) (broker.Session, error) {
	o.n.Add(1)
	return o.Source.Open(ctx, window)
}
