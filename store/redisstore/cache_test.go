package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/cachetest"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

var _ cachetest.Cache = (*redisstore.Cache)(nil)

func prefixOf(t testing.TB) string { return fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano()) }

func TestTheCacheAddsOnlyWhereThereIsNothing(t *testing.T) {
	client := connect(t)
	c := redisstore.NewCache(client, prefixOf(t))
	must(t, c.Set(t.Context(), "a", []byte("first"), time.Minute))
	must(t, c.Add(t.Context(), map[string][]byte{"a": []byte("second"), "b": []byte("second"), "empty": {}}, time.Minute))
	must(t, c.Set(t.Context(), "b", []byte("third"), time.Minute))
	values, err := c.Get(t.Context(), "a", "none", "b", "empty")
	if got := fmt.Sprintf("%q %v", values, values[1] == nil); err != nil || got != `["first" "" "third" ""] true` || values[3] == nil {
		t.Errorf("Get returned %s, %v", got, err)
	}
	for key, want := range map[string]string{"a": "first", "none": ""} {
		if values, err = c.Get(t.Context(), key); err != nil || len(values) != 1 || string(values[0]) != want {
			t.Errorf("Get of %q returned %q, %v", key, values, err)
		}
	}
}

func TestTheCacheDropsValuesInTime(t *testing.T) {
	client := connect(t)
	prefix := prefixOf(t)
	c := redisstore.NewCache(client, prefix)
	must(t, c.Add(t.Context(), map[string][]byte{"a": []byte("value")}, 90*time.Second))
	must(t, c.Set(t.Context(), "b", []byte("value"), 1500*time.Millisecond))
	for key, keep := range map[string]time.Duration{"a": 90 * time.Second, "b": 1500 * time.Millisecond} {
		left, err := client.PTTL(t.Context(), prefix+key).Result()
		if err != nil || left <= 0 || left > keep {
			t.Errorf("%q is kept for %v, %v; want up to %v", key, left, err, keep)
		}
	}
}

// The client may ignore contexts, or not.
func TestTheCacheEndsWithItsContext(t *testing.T) {
	o := *connect(t).Options()
	for _, enabled := range []bool{true, false} {
		o.ContextTimeoutEnabled = enabled
		client := redis.NewClient(&o)
		must(t, client.Ping(t.Context()).Err())
		must(t, client.Do(t.Context(), "CLIENT", "PAUSE", "2000", "ALL").Err())
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := redisstore.NewCache(client, "once:").Get(ctx, "a")
		cancel()
		if took := time.Since(begun); err == nil || took > time.Second {
			t.Errorf("with ContextTimeoutEnabled %v, Get returned %v after %v", enabled, err, took)
		}
		must(t, client.Do(t.Context(), "CLIENT", "UNPAUSE").Err())
		must(t, client.Close())
	}
}

func TestInvalidCaches(t *testing.T) {
	for name, c := range map[string]*redisstore.Cache{
		"no client": redisstore.NewCache(nil, "once:"),
		"no prefix": redisstore.NewCache(connect(t), ""),
	} {
		_, got := c.Get(t.Context(), "1")
		if !errors.Is(got, once.ErrInvalid) || !errors.Is(c.Set(t.Context(), "1", nil, time.Hour), once.ErrInvalid) ||
			!errors.Is(c.Add(t.Context(), map[string][]byte{"1": nil}, time.Hour), once.ErrInvalid) {
			t.Errorf("%s: Get returned %v", name, got)
		}
	}
}

// A server that is gone answers neither an attempt to connect nor a command.
func TestTheCacheDoesNotWaitForAConnection(t *testing.T) {
	gone := make(chan struct{})
	defer close(gone)
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, PoolSize: 2, DialTimeout: 500 * time.Millisecond,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-gone:
				return nil, errors.New("the server is gone")
			}
		}})
	defer client.Close()
	c := redisstore.NewCache(client, "once:")
	for i := range 4 { // the last of them wait for the others
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := c.Get(ctx, "a")
		cancel()
		if took := time.Since(begun); err == nil || took > time.Second {
			t.Errorf("Get number %d returned %v after %v", i+1, err, took)
		}
	}
}

// A server that is down refuses connections, and the client tries again.
func TestTheCacheDoesNotRepeatAfterItsContext(t *testing.T) {
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }})
	defer client.Close()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := redisstore.NewCache(client, "once:").Get(ctx, "a")
	if took := time.Since(begun); err == nil || took > 250*time.Millisecond {
		t.Errorf("Get returned %v after %v", err, took)
	}
}
