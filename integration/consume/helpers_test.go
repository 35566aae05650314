//go:build linux

package consume

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/inbox"
)

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
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it was waited in vain for this: %s", what)
		}
	}
}

func wantLogChanged(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, inbox.ErrLogChanged) {
		t.Errorf("Run returned %v, not ErrLogChanged", err)
	}
}
