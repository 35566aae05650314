//go:build linux

package publish

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/outbox"
)

const (
	soakVar  = "ONCE_SOAK" // a duration: proofs go on for that long, and are larger
	patience = time.Minute // with everything that is waited for
)

// soaking is how long proofs are to go on, if they are.
func soaking(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv(soakVar)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// beside runs tests beside each other, so many at once: more than there are processors, because they mostly wait.
func beside(t *testing.T, most int, names []string, test func(*testing.T, string)) {
	t.Helper()
	places := make(chan struct{}, most)
	var all sync.WaitGroup
	for _, name := range names {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			t.Run(name, func(t *testing.T) { test(t, name) })
		})
	}
	all.Wait()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testLogger writes to the log of a test, as long as that takes it.
func testLogger(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type logWriter struct {
	mu sync.Mutex
	t  testing.TB // nil: it has ended
}

func (w *logWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(string(text))
	}
	return len(text), nil
}

func (w *logWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

// await polls until something is true.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it was waited in vain for this: %s", what)
		}
	}
}

// pause is between two disturbances, or two attempts at something that others have to make possible.
func pause(d time.Duration) { <-time.After(d) }

// soon is a context for what has to come to an end, also while a test is cleaned up.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

// run runs a relay in this process until the test ends, or the function is called.
func run(t testing.TB, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// relay is a relay in this process, which publishes to a press.
func (w *world) relay(t testing.TB, p *press) *outbox.Relay {
	return quick(&outbox.Relay{Store: w.store, Publisher: newCourier(p.url, "here"), Lease: 8 * time.Second,
		Logger: testLogger(t), Stats: new(outbox.Stats)})
}
