// Package patience bounds calls in time at no cost until somebody waits for the bound.
package patience

import (
	"context"
	"sync"
	"time"
)

// Limited is a context with a deadline, whose timer starts when somebody asks for its Done. A store in memory never does.
type Limited struct {
	context.Context
	end time.Time

	mu     sync.Mutex
	ended  bool
	awake  context.Context // nil: nobody has asked
	cancel context.CancelFunc
}

// Limit is context.WithTimeout.
func Limit(parent context.Context, d time.Duration) *Limited {
	return &Limited{Context: parent, end: time.Now().Add(d)}
}

// Deadline is the earlier one of the limit and its parent's.
func (l *Limited) Deadline() (time.Time, bool) {
	if end, ok := l.Context.Deadline(); ok && end.Before(l.end) {
		return end, true
	}
	return l.end, true
}

// Done is closed when the limit, or its parent, has ended.
func (l *Limited) Done() <-chan struct{} { return l.wake().Done() }

// AfterFunc lets contexts below this one do without a goroutine.
func (l *Limited) AfterFunc(f func()) func() bool { return context.AfterFunc(l.wake(), f) }

// Err says why it has ended.
func (l *Limited) Err() error {
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

func (l *Limited) wake() context.Context {
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

// Stop ends it.
func (l *Limited) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.cancel != nil {
		l.cancel()
	}
}
