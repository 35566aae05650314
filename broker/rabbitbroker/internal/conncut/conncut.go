// Package conncut ends calls that take no context, by cutting the connection that
// they wait for. It is for clients that write without a deadline, and so block
// while the server does not read.
package conncut

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// grace is how long a call may take to return after its context has ended.
const grace = 100 * time.Millisecond

// Conn is a connection that can be cut. It is also closed when a read fails, for
// example because of a missed heartbeat. Otherwise a write in progress could
// block for ever.
type Conn struct {
	net.Conn
	cut     atomic.Bool
	release func() bool
}

// Wrap returns a connection that is cut when ctx ends, until it is released.
func Wrap(ctx context.Context, inner net.Conn) *Conn {
	c := &Conn{Conn: inner}
	c.release = context.AfterFunc(ctx, c.Cut)
	return c
}

// Release lets the connection outlive the context of Wrap. It returns false if
// the context has ended.
func (c *Conn) Release() bool { return c.release() }

// Read closes the connection if it fails.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		_ = c.Conn.Close()
	}
	return n, err
}

// Cut ends all calls that wait for the connection.
func (c *Conn) Cut() {
	c.cut.Store(true)
	_ = c.Conn.Close()
}

// IsCut reports whether the connection was cut. The client may notice later.
func (c *Conn) IsCut() bool { return c.cut.Load() }

// During calls f, which uses the connection, and cuts the connection if f has not
// returned when ctx ends.
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

// Wait calls f and waits for it until ctx ends. It passes a later result of f to
// drop.
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

// EndedBy wraps err together with the error of ctx if ctx has ended, because the
// end of ctx is then the cause.
func EndedBy(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}
