package redisstore

import (
	"context"
	"errors"
	"fmt"
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
}

// NewCache returns a cache. The prefix begins the names of its keys, and names the
// database of the store: caches of two databases need two prefixes. The client
// remains the caller's.
func NewCache(client redis.UniversalClient, prefix string) *Cache {
	c := &Cache{client: client, prefix: prefix}
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
	if c.invalid != nil {
		return nil, c.invalid
	}
	replies := make([]*redis.StringCmd, len(keys))
	if len(keys) == 1 {
		replies[0] = c.client.Get(ctx, c.prefix+keys[0])
	} else {
		p := c.client.Pipeline()
		for i, k := range keys {
			replies[i] = p.Get(ctx, c.prefix+k)
		}
		_, _ = p.Exec(ctx) // each reply has its own error
	}
	values := make([][]byte, len(keys))
	for i, reply := range replies {
		value, err := reply.Bytes()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		if err == nil {
			values[i] = value
		}
	}
	return values, nil
}

// Add keeps each value for a duration, unless its key has a value already.
func (c *Cache) Add(ctx context.Context, values map[string][]byte, keep time.Duration) error {
	if c.invalid != nil {
		return c.invalid
	}
	p := c.client.Pipeline()
	for k, value := range values {
		p.SetNX(ctx, c.prefix+k, value, keep)
	}
	_, err := p.Exec(ctx)
	return err
}

// Set keeps a value for a duration, in place of any other.
func (c *Cache) Set(ctx context.Context, key string, value []byte, keep time.Duration) error {
	if c.invalid != nil {
		return c.invalid
	}
	return c.client.Set(ctx, c.prefix+key, value, keep).Err()
}
