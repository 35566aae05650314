package desk

import (
	"context"
	"sync"
)

// Bell is a mutex that tells when what it guards has changed. The zero value works.
type Bell struct {
	sync.Mutex
	next context.Context // ends with the next ring; nil: nobody has asked for it
	ring context.CancelFunc
}

// Ring wakes all that wait. The mutex is held.
func (b *Bell) Ring() {
	if b.next != nil {
		b.ring()
		b.next = nil
	}
}

// Until waits until something is so, which is asked with the mutex held, now and after each ring. If ctx ends before,
// it returns the cause.
func (b *Bell) Until(ctx context.Context, so func() bool) error {
	for {
		b.Lock()
		done, rung := so(), b.rung()
		b.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-rung.Done():
		}
	}
}

// rung ends with the next ring. The mutex is held.
func (b *Bell) rung() context.Context {
	if b.next == nil {
		b.next, b.ring = context.WithCancel(context.Background())
	}
	return b.next
}
