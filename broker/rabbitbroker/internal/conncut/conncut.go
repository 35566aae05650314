// Package conncut lets calls that heed no context end with one: it cuts the connection that they wait for. It is for
// clients of servers that write without a deadline, and wait for ever if the server does not read.
package conncut

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// grace is how long a call that is not held up gets to end after its context has.
const grace = 100 * time.Millisecond

// Conn is a connection that can be cut. It also ends when reading fails, for example because a heartbeat was missed:
// who only then waits for the write that is under way may wait for ever.
type Conn struct {
	net.Conn
	cut     atomic.Bool
	release func() bool
}

// Hold returns a connection that the end of ctx cuts, until it is released.
func Wrap(ctx context.Context, inner net.Conn) *Conn {
	c := &Conn{Conn: inner}
	c.release = context.AfterFunc(ctx, c.Cut)
	return c
}

// Release lets the connection outlive the context that it was held by. It is false if that has cut it.
func (c *Conn) Release() bool { return c.release() }

// Read closes the connection if it fails.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		_ = c.Conn.Close()
	}
	return n, err
}

// Cut ends everything that waits for the connection.
func (c *Conn) Cut() {
	c.cut.Store(true)
	_ = c.Conn.Close()
}

// IsCut reports whether it was cut, which the client on it learns a little later.
func (c *Conn) IsCut() bool { return c.cut.Load() }

// During runs f, which waits for the server, and cuts the connection if that takes longer than ctx.
func (c *Conn) During(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(grace):
			c.Cut()
		}
	})
	defer stop()
	if err := f(); err != nil {
		return EndedBy(ctx, err)
	}
	return nil
}

// Wait runs f, but does not wait for it longer than ctx. What f makes later is dropped.
func Wait[T any](ctx context.Context, f func() (T, error), drop func(T)) (made T, err error) {
	type result struct {
		made T
		err  error
	}
	done := make(chan result, 1)
	go func() {
		made, err := f()
		done <- result{made, err}
	}()
	select {
	case r := <-done:
		if r.err == nil {
			return r.made, nil
		}
		return made, EndedBy(ctx, r.err)
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				drop(r.made)
			}
		}()
		return made, ctx.Err()
	}
}

// EndedBy adds to an error that ctx has ended, if it has: then that is what has caused it.
func EndedBy(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}
