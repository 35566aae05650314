// Package logtest holds [slog.Default] in tests, which is what logs where no
// logger was given.
package logtest

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Main is the TestMain of a package whose tests log nothing by default.
func Main(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}

// Default records what is logged by default from now on until the end of the
// test, which is not parallel to others.
func Default(t testing.TB) *Log {
	before, l := slog.Default(), new(Log)
	slog.SetDefault(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

// Log is what was logged.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was logged, one line for each message.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
