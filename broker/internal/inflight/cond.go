package inflight

import (
	"context"
	"sync"
)

// Cond is a mutex and a condition that it guards. Unlike with sync.Cond, waiting
// ends with a context. The zero value is valid.
type Cond struct {
	sync.Mutex
	next   context.Context // ends with the next Broadcast; nil if no goroutine waits
	cancel context.CancelFunc
}

// Broadcast wakes all waiting goroutines. The mutex is held.
func (c *Cond) Broadcast() {
	if c.next != nil {
		c.cancel()
		c.next = nil
	}
}

// WaitUntil waits until isTrue returns true. It calls isTrue with the mutex
// held, at once and after each Broadcast. If ctx ends first, it returns its
// cause.
func (c *Cond) WaitUntil(ctx context.Context, isTrue func() bool) error {
	for {
		c.Lock()
		done, changed := isTrue(), c.changed()
		c.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed.Done():
		}
	}
}

// changed returns a context that ends with the next Broadcast. The mutex is
// held.
func (c *Cond) changed() context.Context {
	if c.next == nil {
		c.next, c.cancel = context.WithCancel(context.Background())
	}
	return c.next
}
