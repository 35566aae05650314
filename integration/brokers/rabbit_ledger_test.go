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

// TestRabbitLosesNothing kills the server while messages are published and
// consumed.
func TestRabbitLosesNothing(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRabbit(t)
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("classic %v", classic), func(t *testing.T) {
			p := r.place(t, rabbitbroker.Options{}, rabbitbroker.QueueOptions{Classic: classic})
			l := &rabbitLedger{confirmed: map[string]bool{}, seen: map[string]int{}}
			ctx, stop := context.WithCancel(t.Context())
			var publishing, consuming sync.WaitGroup
			for i := range 4 {
				publishing.Go(func() { l.publish(ctx, p, i*1e6) })
			}
			var end ledgerEnd
			consuming.Go(func() { end = l.consume(t, p) })
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
			l.check(t, end)
			t.Logf("%d confirmed, %d seen, %d deliveries", len(l.confirmed), len(l.seen), l.deliveries)
		})
	}
}

// rabbitLedger records which messages were confirmed, and which have come.
type rabbitLedger struct {
	mu         sync.Mutex
	confirmed  map[string]bool
	seen       map[string]int
	doubled    []string // came again without being Redelivered
	deliveries int
	done       bool // publishing has ended
	last       error
}

// ledgerEnd is how consuming ended.
type ledgerEnd int

const (
	unchecked ledgerEnd = iota // time was up before the queue was known to be empty
	complete                   // all confirmed messages have come
	empty                      // the queue is empty, and confirmed messages are missing
)

// emptyRounds is how often in a row a queue must be empty before its missing
// messages count as lost. The server needs a moment to return the deliveries of a
// broken session.
const emptyRounds = 5

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

// consume handles messages until all that were confirmed have come, or the queue
// is empty, or time is up.
func (l *rabbitLedger) consume(t *testing.T, p *rabbitPlace) ledgerEnd {
	rounds := 0
	for deadline := time.Now().Add(3 * proof.Patience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		s, err := p.broker.Queue(p.queue).Open(ctx, 50)
		cancel()
		for err == nil && time.Now().Before(deadline) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			var ds []broker.Delivery
			ds, err = s.Receive(ctx, 20)
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			l.see(ds)
			if err == nil && len(ds) > 0 {
				err = s.Ack(ctx, ds)
			}
			cancel()
			if len(ds) > 0 || err != nil {
				rounds = 0
				continue
			}
			switch done, missing := l.missing(); {
			case !done:
			case missing == 0:
				proof.Must(t, s.Close(proof.Soon(t)))
				return complete
			case !isEmpty(t, p):
				rounds = 0
			default:
				rounds++
			}
			if rounds == emptyRounds {
				proof.Must(t, s.Close(proof.Soon(t)))
				return empty
			}
		}
		if err != nil {
			l.note(err)
		}
		if s != nil {
			_ = s.Close(proof.Soon(t))
		}
	}
	return unchecked
}

// isEmpty reports whether the server says that the queue has no messages ready.
func isEmpty(t *testing.T, p *rabbitPlace) bool {
	lag, err := p.broker.Queue(p.queue).(broker.Lagger).Lag(proof.Soon(t))
	return err == nil && lag.Messages == 0
}

func (l *rabbitLedger) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

func (l *rabbitLedger) see(ds []broker.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ds {
		l.deliveries++
		if l.seen[d.Message.ID]++; l.seen[d.Message.ID] > 1 && !d.Redelivered {
			l.doubled = append(l.doubled, d.Message.ID)
		}
	}
}

// missing returns whether publishing has ended, and how many confirmed messages
// have not come.
func (l *rabbitLedger) missing() (done bool, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.confirmed {
		if l.seen[id] == 0 {
			n++
		}
	}
	return l.done, n
}

// check distinguishes messages that were lost, that came twice, and that could
// not be checked in time.
func (l *rabbitLedger) check(t *testing.T, end ledgerEnd) {
	t.Helper()
	_, missing := l.missing()
	switch end {
	case empty:
		t.Errorf("lost: the queue is empty, and %d of %d confirmed messages have not come", missing, len(l.confirmed))
	case unchecked:
		t.Errorf("not checked in time: %d of %d confirmed messages have not come within %v, which does not show that they are lost; the last error: %v",
			missing, len(l.confirmed), 3*proof.Patience, l.last)
	}
	if len(l.doubled) > 0 {
		t.Errorf("doubled: %d messages came again without being Redelivered: %.60q", len(l.doubled), l.doubled)
	}
}
