// Package proof has what the proofs of this module share: how long they go on and wait, what chance decides, and where
// a program under test logs.
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
	SoakVar = "ONCE_SOAK" // a duration: proofs go on for that long, and are larger
	SeedVar = "ONCE_SEED" // a number: what chance decides is decided again as it was
)

// Patience is how long proofs wait for what should take no time.
const Patience = testenv.Patience

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Soaking is how long proofs are to go on, if they are.
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

// Seed is a new seed, or the one of an earlier run. It is in the log of the test.
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

// Beside runs tests beside each other, so many at once: more than there are processors, because they mostly wait.
// t.Parallel would have no more of them.
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

// Await polls until something is true: often at first, and less often when that takes long.
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

// Pause is between two disturbances, or two attempts at something that others have to make possible.
func Pause(d time.Duration) { <-time.After(d) }

// Soon is a context for what has to come to an end, also while a test is cleaned up.
func Soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Logger writes to the log of a test, as long as that takes it.
func Logger(t testing.TB) *slog.Logger {
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
