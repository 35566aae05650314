// Package proof has what the tests of this module share: how long they run and
// wait, their seeds, and their loggers.
package proof

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// The environment variables of proofs.
const (
	SoakVar = "ONCE_SOAK" // a duration: tests run for that long, and are larger
	SeedVar = "ONCE_SEED" // a number: the seed of the random choices to repeat
)

// Patience is how long tests wait for something that should happen at once.
const Patience = testenv.Patience

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Soaking returns the duration of a soak, or 0.
func Soaking(t testing.TB) (d time.Duration) {
	t.Helper()
	if text := os.Getenv(SoakVar); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", SoakVar, err)
		}
	}
	return d
}

// Seed returns a new seed, or that of SeedVar. It logs the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(SeedVar); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVar, err)
		}
	}
	t.Logf("%s=%d", SeedVar, seed)
	return seed
}

// Beside runs up to limit tests at once. The limit may exceed the number of
// processors, unlike that of t.Parallel, because the tests mostly wait.
func Beside(t *testing.T, limit int, names []string, test func(*testing.T, string)) {
	t.Helper()
	places := make(chan struct{}, limit)
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

// Await polls until a condition holds: often at first, and less often later.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	for pause := 5 * time.Millisecond; !holds(); pause = min(pause*11/10, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatalf("it was waited in vain for this: %s", what)
		}
	}
}

// Pause waits between two disturbances, or between two attempts.
func Pause(d time.Duration) { <-time.After(d) }

// Soon returns a context with a timeout, which also works while a test is
// cleaned up.
func Soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Logger returns a logger that writes to the log of a test until its end.
func Logger(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type logWriter struct {
	mu sync.Mutex
	t  testing.TB // nil: the test has ended
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
