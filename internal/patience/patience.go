// Package patience bounds calls in time at no cost until somebody waits for the bound.
package patience

import (
	"context"
	"sync"
	"time"
)

// limited is a context with a deadline, whose timer starts when somebody asks for its Done. Most stores in memory never do.
type limited struct {
	context.Context
	end time.Time

	mu     sync.Mutex
	ended  bool
	awake  context.Context // nil: nobody has asked
	cancel context.CancelFunc
}

// Limit is context.WithTimeout.
func Limit(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	l := &limited{Context: parent, end: time.Now().Add(d)}
	return l, l.stop
}

// Deadline is the earlier one of the limit and its parent's.
func (l *limited) Deadline() (time.Time, bool) {
	if end, ok := l.Context.Deadline(); ok && end.Before(l.end) {
		return end, true
	}
	return l.end, true
}

// Done is closed when the limit, or its parent, has ended.
func (l *limited) Done() <-chan struct{} { return l.wake().Done() }

// AfterFunc lets contexts below this one do without a goroutine.
func (l *limited) AfterFunc(f func()) func() bool { return context.AfterFunc(l.wake(), f) }

// Err says why it has ended.
func (l *limited) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch err := l.Context.Err(); {
	case l.awake != nil:
		return l.awake.Err()
	case err != nil:
		return err
	case l.ended:
		return context.Canceled
	case !time.Now().Before(l.end):
		return context.DeadlineExceeded
	}
	return nil
}

func (l *limited) wake() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awake == nil {
		l.awake, l.cancel = context.WithDeadline(l.Context, l.end)
		if l.ended {
			l.cancel()
		}
	}
	return l.awake
}

func (l *limited) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.cancel != nil {
		l.cancel()
	}
}
