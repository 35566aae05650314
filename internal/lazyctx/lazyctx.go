// Package lazyctx has contexts that cost one allocation until somebody waits
// for them.
package lazyctx

import (
	"context"
	"sync"
	"time"
)

// Context behaves like any other context, but it starts no timer, and is not
// known to its parent, until Done is called. A store in memory never calls
// Done.
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

// Limit is like context.WithDeadline.
func Limit(parent context.Context, end time.Time) *Context {
	return &Context{parent: parent, limit: end}
}

// Detach is like Limit of context.WithoutCancel.
func Detach(parent context.Context, end time.Time) *Context {
	return &Context{parent: parent, detached: true, limit: end}
}

// Init makes c a context like that of context.WithCancelCause.
func (c *Context) Init(parent context.Context) { c.parent = parent }

// Deadline returns the earlier of the limit and the deadline of the parent.
func (c *Context) Deadline() (end time.Time, ok bool) {
	if !c.detached {
		end, ok = c.parent.Deadline()
	}
	if !c.limit.IsZero() && (!ok || c.limit.Before(end)) {
		return c.limit, true
	}
	return end, ok
}

// Done returns a channel that is closed when the context ends.
func (c *Context) Done() <-chan struct{} { return c.wake().Done() }

// AfterFunc lets child contexts work without a goroutine.
func (c *Context) AfterFunc(f func()) func() bool { return context.AfterFunc(c.wake(), f) }

// Value returns the value of the parent. After Done was called, it also answers
// [context.Cause].
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

// Err returns why the context has ended, or nil.
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

// real returns the standard context that this one stands for.
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

// End ends the context. [context.Cause] then returns cause, or context.Canceled
// if cause is nil.
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
