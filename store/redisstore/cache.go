package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// Cache is a cache in Redis, for package tiered. Unlike a [Store], it may be on a
// server that evicts keys or that keeps nothing on disk: what is lost is asked of
// the store. Reads must go to the primary, because a replica may not know yet that
// a key was reopened.
type Cache struct {
	client  redis.UniversalClient
	prefix  string
	invalid error
	deaf    bool // the client does not end calls with their contexts
	ends    ends
}

// NewCache returns a cache. The prefix begins the names of its keys, and names the
// database of the store: caches of two databases need two prefixes. The client
// remains the caller's. Set its ContextTimeoutEnabled: otherwise each call takes
// another goroutine, which waits for the timeouts of the client.
func NewCache(client redis.UniversalClient, prefix string) *Cache {
	c := &Cache{client: client, prefix: prefix, deaf: true, ends: ends{channels: make(map[int64]chan struct{})}}
	switch client := client.(type) {
	case *redis.Client:
		c.deaf = !client.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		c.deaf = !client.Options().ContextTimeoutEnabled
	}
	switch {
	case client == nil:
		c.invalid = fmt.Errorf("%w: redisstore: the client of the cache is nil", once.ErrInvalid)
	case prefix == "":
		c.invalid = fmt.Errorf("%w: redisstore: the cache has no prefix, which keeps the keys of two databases apart", once.ErrInvalid)
	}
	return c
}

// Get returns the values of keys, in their order; nil for a key that has none.
func (c *Cache) Get(ctx context.Context, keys ...string) ([][]byte, error) {
	return within(ctx, c, func(ctx context.Context) ([][]byte, error) {
		if len(keys) == 1 {
			value, err := read(c.client.Get(ctx, c.prefix+keys[0]))
			return [][]byte{value}, err
		}
		replies, p := make([]*redis.StringCmd, len(keys)), c.client.Pipeline()
		for i, k := range keys {
			replies[i] = p.Get(ctx, c.prefix+k)
		}
		_, _ = p.Exec(ctx) // each reply has its own error
		values := make([][]byte, len(keys))
		for i, reply := range replies {
			var err error
			if values[i], err = read(reply); err != nil {
				return nil, err
			}
		}
		return values, nil
	})
}

// read returns the value of a key, or nil if it has none.
func read(reply *redis.StringCmd) ([]byte, error) {
	value, err := reply.Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, err
}

// Add keeps each value for a duration, unless its key has a value already.
func (c *Cache) Add(ctx context.Context, values map[string][]byte, keep time.Duration) error {
	_, err := within(ctx, c, func(ctx context.Context) ([]redis.Cmder, error) {
		p := c.client.Pipeline()
		for k, value := range values {
			p.SetNX(ctx, c.prefix+k, value, keep)
		}
		return p.Exec(ctx)
	})
	return err
}

// Set keeps a value for a duration, in place of any other.
func (c *Cache) Set(ctx context.Context, key string, value []byte, keep time.Duration) error {
	_, err := within(ctx, c, func(ctx context.Context) (string, error) {
		return c.client.Set(ctx, c.prefix+key, value, keep).Result()
	})
	return err
}

// within makes a call, and returns when it has ended or when the context has.
func within[T any](ctx context.Context, c *Cache, call func(context.Context) (T, error)) (none T, err error) {
	switch {
	case c.invalid != nil:
		return none, c.invalid
	case !c.deaf:
		return call(untilDeadline{ctx, &c.ends})
	}
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		value, err := call(ctx)
		ended <- result{value, err}
	}()
	select {
	case r := <-ended:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// untilDeadline is a context that ends soon after its deadline, and not before. A
// client asks each context for its channel, whose making would cost several times
// what the rest of the call does. So contexts that end together share one.
type untilDeadline struct {
	context.Context
	ends *ends
}

func (c untilDeadline) Done() <-chan struct{} {
	if at, ok := c.Deadline(); ok {
		if left := time.Until(at); left < farOff {
			return c.ends.after(left)
		}
	}
	return c.Context.Done()
}

// Err is not nil once Done is closed, which may be a moment before the timer of the
// context itself has fired. A client that finds no error then takes the call for
// one that has succeeded.
func (c untilDeadline) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if at, ok := c.Deadline(); ok && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return nil
}

const (
	// grain is how much later than its deadline a context may end. A connection
	// that is there already ends with the deadline itself.
	grain = 10 * time.Millisecond

	farOff = 5 * time.Second // which takes a channel of its own, so that few are shared
)

// ends are channels that are closed at multiples of grain.
type ends struct {
	mu       sync.Mutex
	channels map[int64]chan struct{} // by the multiple
}

// after returns a channel that is closed after a time, and at most a grain later.
func (e *ends) after(left time.Duration) <-chan struct{} {
	now := time.Since(start)
	n := int64((now + max(left, 0) + grain - 1) / grain)
	e.mu.Lock()
	defer e.mu.Unlock()
	end, ok := e.channels[n]
	if !ok {
		end = make(chan struct{})
		e.channels[n] = end
		time.AfterFunc(time.Duration(n)*grain-now, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.channels, n)
			close(end)
		})
	}
	return end
}
