// Package lazyctx has contexts that cost one allocation, until somebody waits for them.
package lazyctx

import (
	"context"
	"sync"
	"time"
)

// Context ends like any other, but has no timer, and its parent does not know of it, before somebody asks for its Done. A
// store in memory never does.
type Context struct {
	parent   context.Context
	detached bool
	limit    time.Time // zero: none

	mu     sync.Mutex
	ended  bool
	cause  error
	awake  context.Context // nil: nobody has asked
	cancel context.CancelCauseFunc
}

// Limit is context.WithTimeout.
func Limit(parent context.Context, d time.Duration) *Context {
	return &Context{parent: parent, limit: time.Now().Add(d)}
}

// Detach is Limit of context.WithoutCancel.
func Detach(parent context.Context, d time.Duration) *Context {
	return &Context{parent: parent, detached: true, limit: time.Now().Add(d)}
}

// Init makes c what context.WithCancelCause makes.
func (c *Context) Init(parent context.Context) { c.parent = parent }

// Deadline is the earlier one of the limit and its parent's.
func (c *Context) Deadline() (end time.Time, ok bool) {
	if !c.detached {
		end, ok = c.parent.Deadline()
	}
	if !c.limit.IsZero() && (!ok || c.limit.Before(end)) {
		return c.limit, true
	}
	return end, ok
}

// Done is closed when it has ended.
func (c *Context) Done() <-chan struct{} { return c.wake().Done() }

// AfterFunc lets contexts below this one do without a goroutine.
func (c *Context) AfterFunc(f func()) func() bool { return context.AfterFunc(c.wake(), f) }

// Value is its parent's. Once it is awake, it also answers [context.Cause].
func (c *Context) Value(key any) any {
	if c.detached {
		return c.wake().Value(key) // the parent would answer for its own end
	}
	c.mu.Lock()
	awake := c.awake
	c.mu.Unlock()
	if awake != nil {
		return awake.Value(key)
	}
	return c.parent.Value(key)
}

// Err says why it has ended.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awake != nil {
		return c.awake.Err()
	}
	if err := c.parent.Err(); err != nil && !c.detached {
		return err
	}
	switch {
	case c.ended:
		return context.Canceled
	case !c.limit.IsZero() && !time.Now().Before(c.limit):
		return context.DeadlineExceeded
	}
	return nil
}

func (c *Context) wake() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awake == nil {
		c.awake, c.cancel = c.real()
		if c.ended {
			c.cancel(c.cause)
		}
	}
	return c.awake
}

// real is the context that this one stands for.
func (c *Context) real() (context.Context, context.CancelCauseFunc) {
	parent := c.parent
	if c.detached {
		parent = context.WithoutCancel(parent)
	}
	if c.limit.IsZero() {
		return context.WithCancelCause(parent)
	}
	limited, cancel := context.WithDeadline(parent, c.limit)
	real, end := context.WithCancelCause(limited)
	return real, func(cause error) { // the cause first
		end(cause)
		cancel()
	}
}

// End ends it, for a cause that [context.Cause] tells. A nil cause is context.Canceled.
func (c *Context) End(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	if c.cancel != nil {
		c.cancel(cause)
	}
}

// Stop is End without a cause.
func (c *Context) Stop() { c.End(nil) }
