package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/redisstore"
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
	for name, change := range documentDamages(c) {
		all = append(all, storetest.Damage{
			Name: name,
			Position: func(ctx context.Context, consumer, partition string) error {
				return change(ctx, fmt.Sprintf("%s{00}:doc:position/%x/%x", prefix, consumer, partition))
			},
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

func documentDamages(c *redis.Client) map[string]func(ctx context.Context, key string) error {
	return map[string]func(ctx context.Context, key string) error{
		"no JSON":    func(ctx context.Context, key string) error { return c.HSet(ctx, key, "text", "{").Err() },
		"no text":    func(ctx context.Context, key string) error { return c.HDel(ctx, key, "text").Err() },
		"no version": func(ctx context.Context, key string) error { return c.HDel(ctx, key, "version").Err() },
	}
}

// undoable changes a document, and returns what makes it what it was.
func undoable(ctx context.Context, c *redis.Client, key string, change func(context.Context, string) error) (func(context.Context) error, error) {
	was, err := c.HGetAll(ctx, key).Result()
	if err == nil && len(was) == 0 {
		err = fmt.Errorf("there is no document %s", key)
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return errors.Join(c.Del(ctx, key).Err(), c.HSet(ctx, key, was).Err())
	}, change(ctx, key)
}

// One damaged document that many share stops none of them.
func TestConformanceBesideDamagedDocuments(t *testing.T) {
	c, o := connect(t), redisstore.Options{}
	_, o.Prefix = fresh(t, c)
	h := txHarness(t, o)
	h.Open = func(t testing.TB) once.TxStore[*redisstore.Tx] { return redisstore.New(connect(t), &o) }
	h.Damages = nil
	for name, change := range documentDamages(c) {
		h.Damages = append(h.Damages, storetest.Damage{Name: name,
			Leases: func(ctx context.Context) error { return change(ctx, o.Prefix+"{00}:doc:lanes") },
			Shelf:  func(ctx context.Context) error { return change(ctx, o.Prefix+"{00}:doc:shelf") },
			Registry: func(ctx context.Context) (func(context.Context) error, error) {
				return undoable(ctx, c, o.Prefix+"{00}:doc:consumers", change)
			},
			Partitions: func(ctx context.Context, consumer string) (func(context.Context) error, error) {
				return undoable(ctx, c, fmt.Sprintf("%s{00}:doc:partitions/%x", o.Prefix, consumer), change)
			},
		})
	}
	for _, c := range storetest.TxCases(t, h) {
		if strings.HasPrefix(c.Name, "damage/") {
			t.Run(c.Name, func(t *testing.T) {
				if err := c.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
