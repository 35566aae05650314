package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// bench has a store and a broker in memory, and counts the calls of handlers.
type bench struct {
	t      *testing.T
	store  *memstore.Store
	broker *membroker.Broker

	mu    sync.Mutex
	calls map[string]int // handler calls by message id
}

func newBench(t *testing.T) *bench {
	o := &memstore.Options{Options: once.Options{Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))}}
	return &bench{t: t, store: memstore.New(o), broker: membroker.New(nil), calls: make(map[string]int)}
}

// onBench runs a test in fake time, with a bench of its own.
func onBench(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	faketime.Test(t, func(t *testing.T) { test(t, newBench(t)) })
}

// onLongBench is onBench for a test that waits for minutes, or is often run.
func onLongBench(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	faketime.Long(t, func(t *testing.T) { test(t, newBench(t)) })
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b))
	return len(b), nil
}

func (b *bench) called(m *broker.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[m.ID]++
}

// add is the effect of a handler: it increments a counter in the store.
func (b *bench) add(tx *memstore.Tx, name string) {
	n := 0
	if v, ok := tx.Get(name); ok {
		n, _ = strconv.Atoi(v)
	}
	tx.Set(name, strconv.Itoa(n+1))
}

func (b *bench) count(name string) int {
	v, _ := b.store.Value(name)
	n, _ := strconv.Atoi(v)
	return n
}

func (b *bench) publish(topic string, ms ...*broker.Message) {
	b.t.Helper()
	for _, m := range ms {
		m.Topic = topic
	}
	if errs := b.broker.Publisher().Publish(b.t.Context(), ms); errs != nil {
		b.t.Fatal(errs)
	}
}

func message(id string) *broker.Message {
	return &broker.Message{ID: id, Body: []byte("body of " + id), Time: time.Now()}
}

func ordered(id, key string) *broker.Message {
	m := message(id)
	m.OrderingKey = key
	return m
}

func numbered(n int) []*broker.Message {
	ms := make([]*broker.Message, n)
	for i := range ms {
		ms[i] = message(fmt.Sprint("m", i))
	}
	return ms
}

// start runs a consumer until the test ends or stop is called. stop returns the
// error of Run.
func start(t *testing.T, c *inbox.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error("Run:", err)
		}
	})
	return stop
}

// await polls until the condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testenv.Await(t, what, holds)
}

func retryAtOnce(attempts int) inbox.Retry {
	return inbox.Retry{Attempts: attempts, First: time.Millisecond, Limit: 2 * time.Millisecond, Outage: -1}
}
