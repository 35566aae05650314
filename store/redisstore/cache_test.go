package redisstore_test

import (
	"context"
	"errors"
	"fmt"
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
