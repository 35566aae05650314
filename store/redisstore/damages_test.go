package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
	"github.com/redis/go-redis/v9"
)

// damages are those of a store with a prefix.
func damages(c *redis.Client, prefix string) (all []storetest.Damage) {
	record := func(k once.Key) string { id := k.UUID(); return fmt.Sprintf("%s{%02x}:%x", prefix, id[0], id) }
	for name, change := range map[string]func(ctx context.Context, key string) error{
		"no status":        func(ctx context.Context, key string) error { return c.HDel(ctx, key, "status").Err() },
		"a text for one":   func(ctx context.Context, key string) error { return c.HSet(ctx, key, "status", "done").Err() },
		"no attempt":       func(ctx context.Context, key string) error { return c.HDel(ctx, key, "attempt").Err() },
		"another key":      func(ctx context.Context, key string) error { return c.HSet(ctx, key, "id", "other").Err() },
		"a format to come": func(ctx context.Context, key string) error { return c.HSet(ctx, key, "format", "3").Err() },
		"another type": func(ctx context.Context, key string) error {
			return errors.Join(c.Del(ctx, key).Err(), c.LPush(ctx, key, "x").Err())
		},
	} {
		all = append(all, storetest.Damage{Name: name, Record: func(ctx context.Context, k once.Key) error { return change(ctx, record(k)) }})
	}
	// find returns the document whose name begins like this and whose text has a part.
	find := func(ctx context.Context, begin, part string) (string, error) {
		keys := c.Scan(ctx, 0, strings.NewReplacer("[", "\\[", "]", "\\]").Replace(prefix)+"{00}:doc:"+begin+"*", 10000).Iterator()
		for keys.Next(ctx) {
			if text, _ := c.HGet(ctx, keys.Val(), "text").Result(); strings.Contains(text, part) {
				return keys.Val(), nil
			}
		}
		return "", fmt.Errorf("there is no document %s with %s: %w", begin, part, keys.Err())
	}
	for name, change := range map[string]func(ctx context.Context, key string) error{
		"no JSON":    func(ctx context.Context, key string) error { return c.HSet(ctx, key, "text", "{").Err() },
		"no text":    func(ctx context.Context, key string) error { return c.HDel(ctx, key, "text").Err() },
		"no version": func(ctx context.Context, key string) error { return c.HDel(ctx, key, "version").Err() },
	} {
		all = append(all, storetest.Damage{
			Name: name,
			Outgoing: func(ctx context.Context, id string) error {
				key, err := find(ctx, "out/", fmt.Sprintf("%q", id))
				return errors.Join(err, change(ctx, key))
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				key, err := find(ctx, fmt.Sprintf("shelf/%x/", consumer), fmt.Sprintf(`"ID":%q`, id))
				return errors.Join(err, change(ctx, key))
			},
		})
	}
	return append(all, storetest.Damage{Name: "another type of document", Outgoing: func(ctx context.Context, id string) error {
		key, err := find(ctx, "out/", fmt.Sprintf("%q", id))
		return errors.Join(err, c.Del(ctx, key).Err(), c.LPush(ctx, key, "x").Err())
	}})
}
