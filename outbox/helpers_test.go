package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// sender is a publisher that stores what it accepts, and fails as a test says.
type sender struct {
	mu    sync.Mutex
	calls [][]string                       // the IDs of each call
	took  []*broker.Message                // what it has confirmed, in order
	rule  func(ms []*broker.Message) error // the end of a whole call
	each  func(m *broker.Message) error    // of one message
	gate  chan struct{}                    // nil: calls do not wait
}

func (s *sender) Publish(ctx context.Context, ms []*broker.Message) []error {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, ids(ms))
	errs, failed := make([]error, len(ms)), false
	var all error
	if s.rule != nil {
		all = s.rule(ms)
	}
	for i, m := range ms {
		switch {
		case all != nil:
			errs[i] = all
		case s.each != nil:
			errs[i] = s.each(m)
		}
		if errs[i] == nil {
			s.took = append(s.took, m)
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (s *sender) Close() error { return nil }

// set changes how it fails.
func (s *sender) set(rule func([]*broker.Message) error, each func(*broker.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rule, s.each = rule, each
}

func (s *sender) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ids(s.took)
}

func (s *sender) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func ids(ms []*broker.Message) (all []string) {
	for _, m := range ms {
		all = append(all, m.ID)
	}
	return all
}

// bench is a store in memory with an outbox.
type bench struct {
	*testing.T
	store  *memstore.Store
	events *outbox.Outbox[*memstore.Tx]
	sender *sender
	logger *slog.Logger
}

func newBench(t *testing.T) *bench {
	s := memstore.New(nil)
	return &bench{T: t, store: s, events: outbox.New(s, nil), sender: new(sender),
		logger: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// put commits messages.
func (b *bench) put(ms ...*broker.Message) {
	b.Helper()
	tx := b.store.Begin()
	b.must(b.events.Put(b.Context(), tx, ms...))
	b.must(tx.Commit())
}

func message(id, key string) *broker.Message {
	return &broker.Message{ID: id, Topic: "orders", OrderingKey: key, Body: []byte("body of " + id)}
}

// some returns n messages with IDs from a prefix. Each has an ordering key of
// its own, or all have the same.
func some(n int, prefix, key string) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, message(fmt.Sprintf("%s%04d", prefix, i), key))
	}
	return ms
}

func (b *bench) relay() *outbox.Relay {
	return &outbox.Relay{Store: b.store, Publisher: b.sender, Logger: b.logger, Stats: new(outbox.Stats)}
}

// run runs a relay. It returns a function that stops it and waits.
func (b *bench) run(r *outbox.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		b.Helper()
		cancel()
		b.must(<-done)
	})
}

// until waits until a condition holds, in the time of the bubble.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for range 40_000 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.Fatalf("it did not come true that %s", what)
}

// rows returns the IDs of messages in a state.
func (b *bench) rows(state store.OutgoingState) (all []string) {
	b.Helper()
	ms, err := b.store.Outgoing(context.Background(), store.OutgoingQuery{State: state, Limit: 10_000})
	b.must(err)
	for _, m := range ms {
		all = append(all, m.Message.ID)
	}
	return all
}

// wantAll checks that messages were taken once each.
func (b *bench) wantAll(want []*broker.Message) {
	b.Helper()
	got, expected := b.sender.taken(), ids(want)
	slices.Sort(got)
	slices.Sort(expected)
	if !slices.Equal(got, expected) {
		b.Errorf("published %d, want %d each once: %.300q", len(got), len(expected), got)
	}
}

// wantOrder checks that messages of a key were taken in the order of their names.
func (b *bench) wantOrder(key string) {
	b.Helper()
	b.sender.mu.Lock()
	defer b.sender.mu.Unlock()
	last := ""
	for _, m := range b.sender.took {
		if m.OrderingKey == key && m.ID <= last {
			b.Errorf("of %q, %s came behind %s", key, m.ID, last)
		}
		if m.OrderingKey == key {
			last = m.ID
		}
	}
}

var errDown = errors.New("the broker is down")
