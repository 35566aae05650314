package webhookbroker

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/internal/hook"
)

// sender is a service that sends webhooks. It accepts messages at once, and
// repeats each until the receiver answers 2xx. It starts requests in the order
// of its messages, without waiting for the answers.
type sender struct {
	receiver *Receiver
	secrets  [][]byte
	ctx      context.Context // of its requests

	mu      sync.Mutex
	pending []*sending // by number; those that are not on their way
	number  int
	changed chan struct{} // has room for one
	running sync.WaitGroup
}

type sending struct {
	number  int
	message broker.Message
}

func newSender(tb testing.TB, rc *Receiver) *sender {
	secrets, err := hook.Secrets([]string{first})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &sender{receiver: rc, secrets: secrets, ctx: ctx, changed: make(chan struct{}, 1)}
	s.running.Add(1)
	go s.run()
	tb.Cleanup(func() {
		cancel()
		s.running.Wait()
	})
	return s
}

// Publish accepts messages.
func (s *sender) Publish(_ context.Context, ms []*broker.Message) []error {
	errs, failed := make([]error, len(ms)), false
	for i, m := range ms {
		if errs[i] = m.Check(); errs[i] != nil {
			failed = true
			continue
		}
		c := *m
		c.Body = bytes.Clone(m.Body)
		c.Header = make(map[string]string)
		for name, value := range m.Header {
			c.Header[name] = value
		}
		s.mu.Lock()
		s.pending = append(s.pending, &sending{s.number, c})
		s.number++
		s.mu.Unlock()
	}
	s.wake()
	if !failed {
		return nil
	}
	return errs
}

func (s *sender) Close() error { return nil }

func (s *sender) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// next takes the first message that is not on its way.
func (s *sender) next() *sending {
	for {
		s.mu.Lock()
		if len(s.pending) > 0 {
			m := s.pending[0]
			s.pending = s.pending[1:]
			s.mu.Unlock()
			return m
		}
		s.mu.Unlock()
		select {
		case <-s.changed:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// again puts a message back in its place.
func (s *sender) again(m *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	for i < len(s.pending) && s.pending[i].number < m.number {
		i++
	}
	s.pending = append(s.pending[:i], append([]*sending{m}, s.pending[i:]...)...)
	s.wake()
}

// run sends one message after another, each as soon as the one before it has
// arrived or was answered.
func (s *sender) run() {
	defer s.running.Done()
	pace := time.NewTicker(time.Millisecond) // between requests that are refused
	defer pace.Stop()
	for m := s.next(); m != nil; m = s.next() {
		s.receiver.mu.Lock()
		before := s.receiver.buffer.Next()
		s.receiver.mu.Unlock()
		answered, end := context.WithCancel(s.ctx)
		s.running.Add(1)
		go func() {
			defer s.running.Done()
			defer end()
			if status := s.post(&m.message); status/100 != 2 && s.ctx.Err() == nil {
				s.again(m)
			}
		}()
		arrived := s.receiver.mu.WaitUntil(answered, func() bool { return s.receiver.buffer.Next() > before })
		if arrived != nil {
			select {
			case <-pace.C:
			case <-s.ctx.Done():
			}
		}
	}
}

func (s *sender) post(m *broker.Message) int {
	r := httptest.NewRequest(http.MethodPost, "/hooks", bytes.NewReader(m.Body)).WithContext(s.ctx)
	event(r.Header, m, "https://shop.example/orders")
	hook.Sign(r.Header, s.secrets, escape(m.ID, '.'), m.Body, time.Now())
	w := httptest.NewRecorder()
	s.receiver.ServeHTTP(w, r)
	return w.Code
}

// The suite runs against a receiver whose sender repeats what was not answered
// with 2xx.
func TestReceiverConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			rc, err := NewReceiver("shop", StandardWebhooks(first), &ReceiverOptions{
				AnswerWithin: time.Minute, MaxBody: 2 << 20, Backlog: 2000, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				tb.Fatal(err)
			}
			return brokertest.Place{Publisher: newSender(tb, rc), Source: rc, Topic: "orders"}
		},
		Quiet: 20 * time.Millisecond,
	})
}
