//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
)

// TestRabbitLosesNothing kills the server amidst publishing and consuming. With a classic queue, messages do not always flow
// again within minutes: that is tried in a soak only.
func TestRabbitLosesNothing(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t)
	for _, classic := range []bool{false, true} {
		if classic && proof.Soaking(t) == 0 {
			continue
		}
		t.Run(fmt.Sprintf("classic %v", classic), func(t *testing.T) {
			p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{Classic: classic})
			l := &rabbitLedger{confirmed: map[string]bool{}, seen: map[string]int{}}
			ctx, stop := context.WithCancel(t.Context())
			var publishing, consuming sync.WaitGroup
			for i := range 4 {
				publishing.Go(func() { l.publish(ctx, p, i*1e6) })
			}
			consuming.Go(func() { l.consume(t, p) })
			for range 2 {
				before := l.count()
				proof.Await(t, "messages flow", func() bool { return l.count() > before+300 })
				r.restart(t)
			}
			before := l.count()
			proof.Await(t, "messages flow again", func() bool { return l.count() > before+300 })
			stop()
			publishing.Wait()
			l.end()
			consuming.Wait()
			l.check(t)
			t.Logf("%d confirmed, %d seen, %d deliveries", len(l.confirmed), len(l.seen), l.deliveries)
		})
	}
}

type rabbitLedger struct {
	mu         sync.Mutex
	confirmed  map[string]bool
	seen       map[string]int
	unflagged  []string // came again, and it was said that they did not
	deliveries int
	done       bool // nobody publishes any more
}

func (l *rabbitLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

func (l *rabbitLedger) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
}

func (l *rabbitLedger) publish(ctx context.Context, p *rabbitPlace, from int) {
	for n := from; ctx.Err() == nil; n += 10 {
		ms := p.messages(10)
		for i, m := range ms {
			m.ID = fmt.Sprint(n + i)
		}
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		errs := p.publisher.Publish(limited, ms)
		cancel()
		l.mu.Lock()
		for i, m := range ms {
			if errs == nil || errs[i] == nil {
				l.confirmed[m.ID] = true
			}
		}
		l.mu.Unlock()
	}
}

// consume handles messages until all that were confirmed have come.
func (l *rabbitLedger) consume(t *testing.T, p *rabbitPlace) {
	for deadline := time.Now().Add(3 * proof.Patience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		s, err := p.broker.Queue(p.queue).Open(ctx, 50)
		cancel()
		if err != nil {
			continue
		}
		for err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			var ds []broker.Delivery
			ds, err = s.Receive(ctx, 20)
			if errors.Is(err, context.DeadlineExceeded) && l.complete() {
				cancel()
				proof.Must(t, s.Close(rabbitSoon(t)))
				return
			}
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			l.see(ds)
			if err == nil {
				err = s.Ack(ctx, ds)
			}
			cancel()
		}
		_ = s.Close(rabbitSoon(t))
	}
}

func (l *rabbitLedger) see(ds []broker.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ds {
		l.deliveries++
		if l.seen[d.Message.ID]++; l.seen[d.Message.ID] > 1 && !d.Redelivered {
			l.unflagged = append(l.unflagged, d.Message.ID)
		}
	}
}

func (l *rabbitLedger) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.confirmed {
		if l.seen[id] == 0 {
			return false
		}
	}
	return l.done
}

func (l *rabbitLedger) check(t *testing.T) {
	lost := 0
	for id := range l.confirmed {
		if l.seen[id] == 0 {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d confirmed messages were lost", lost, len(l.confirmed))
	}
	if len(l.unflagged) > 0 {
		t.Errorf("%d messages came again as if for the first time: %.60q", len(l.unflagged), l.unflagged)
	}
}
