package pgstore

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// A connection that does not answer is cut; one that did is left alone, for whoever has it next.
func TestWatch(t *testing.T) {
	w := &watch{every: 5 * time.Millisecond, now: make(map[*watched]struct{})}
	silent, other := net.Pipe()
	defer silent.Close()
	defer other.Close()
	w.add(silent, time.Hour).end()
	begun, one := time.Now(), w.add(silent, 30*time.Millisecond)
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) < 30*time.Millisecond {
		t.Errorf("read ended after %v with %v", time.Since(begun), err)
	}
	one.end()
	for tick := time.NewTicker(w.every); w.isLooking(); { // nobody is waited for
		<-tick.C
	}
	again := w.add(silent, time.Hour)
	go func() { _, _ = other.Write([]byte{7}) }()
	if _, err := silent.Read(make([]byte, 1)); err != nil {
		t.Errorf("a connection that was cut before: %v", err)
	}
	if again.end(); len(w.now) != 0 || !w.isLooking() {
		t.Errorf("%d are watched still, or nobody looked", len(w.now))
	}
}

func (w *watch) isLooking() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looking
}
