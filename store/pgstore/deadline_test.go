package pgstore

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// A connection that does not answer is canceled. The next call on it has its
// own deadline.
func TestDeadlinesOfCallsWithoutAContext(t *testing.T) {
	w := &deadlines{every: 5 * time.Millisecond, open: make(map[*deadline]struct{})}
	silent, other := net.Pipe()
	defer silent.Close()
	defer other.Close()
	w.add(silent, time.Hour).end()
	begun, one := time.Now(), w.add(silent, 30*time.Millisecond)
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) < 30*time.Millisecond {
		t.Errorf("read ended after %v with %v", time.Since(begun), err)
	}
	one.end()
	for tick := time.NewTicker(w.every); w.isChecking(); { // until there is no deadline
		<-tick.C
	}
	again := w.add(silent, time.Hour)
	go func() { _, _ = other.Write([]byte{7}) }()
	if _, err := silent.Read(make([]byte, 1)); err != nil {
		t.Errorf("a connection that was canceled before: %v", err)
	}
	if again.end(); len(w.open) != 0 || !w.isChecking() {
		t.Errorf("%d deadlines are left, or none was checked", len(w.open))
	}
}

func (w *deadlines) isChecking() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checking
}
