package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/redisstore"
)

// redisStages hold the contests of the store in Redis. The server syncs every
// write.
func redisStages() (stages []stage) {
	for _, contest := range []struct {
		name     string
		variants func(*redisBench) []variant
	}{
		{"a duplicate", (*redisBench).duplicates},
		{"claim and complete", (*redisBench).works},
		{"guarded transaction", (*redisBench).transactions},
	} {
		stages = append(stages, stage{name: contest.name + ", Redis", loads: workers(1, 8),
			open: func(ctx context.Context, _ *bench) (*arena, error) { return openRedis(ctx, contest.variants) }})
	}
	return stages
}

type redisBench struct {
	client *redis.Client
	store  *redisstore.Store
}

// redisPrefix begins the names of all keys, which are deleted at the end.
const redisPrefix = "once-bench:"

func openRedis(ctx context.Context, variants func(*redisBench) []variant) (*arena, error) {
	url := os.Getenv(testenv.RedisVar)
	if url == "" {
		return nil, errNoServer
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	r := &redisBench{client: redis.NewClient(options)}
	closeAll := func() { _, _ = r.clear(context.WithoutCancel(ctx)), r.client.Close() }
	directory, err := r.client.ConfigGet(ctx, "dir").Result()
	if own := os.Getenv(testenv.RedisDataVar); err == nil && directory["dir"] != own {
		err = fmt.Errorf("the server has its data in %s, and not in %s", directory["dir"], own)
	}
	if err != nil {
		return nil, errors.Join(err, r.client.Close())
	}
	r.store = redisstore.New(r.client, &redisstore.Options{Prefix: redisPrefix})
	err = seedDuplicates(ctx, func(ctx context.Context, id string) error {
		return errors.Join(r.do(ctx, id), r.client.Set(ctx, redisPrefix+id, answer300, 0).Err(), r.doTx(ctx, r.store, redisPay, id))
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	return &arena{close: closeAll, contest: func(load) contest {
		return contest{unit: "piece of work", variants: variants(r)}
	}}, nil
}

// clear deletes what the contests wrote.
func (r *redisBench) clear(ctx context.Context) error {
	const many = 1000
	keys := r.client.Scan(ctx, 0, redisPrefix+"*", many).Iterator()
	var some []string
	for keys.Next(ctx) {
		if some = append(some, keys.Val()); len(some) == many {
			if err := r.client.Unlink(ctx, some...).Err(); err != nil {
				return err
			}
			some = nil
		}
	}
	if len(some) > 0 {
		return errors.Join(keys.Err(), r.client.Unlink(ctx, some...).Err())
	}
	return keys.Err()
}

var redisPay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func (r *redisBench) duplicates() []variant {
	return []variant{
		repeated("GET", func(ctx context.Context) error { return r.client.Get(ctx, redisPrefix+someDuplicate()).Err() }),
		repeated("Do, duplicate", func(ctx context.Context) error { return r.do(ctx, someDuplicate()) }),
		repeated("DoTx, duplicate", func(ctx context.Context) error { return r.doTx(ctx, r.store, redisPay, someDuplicate()) }),
	}
}

// ifOwned is how a lock is usually given back.
var ifOwned = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end`)

func (r *redisBench) works() []variant {
	return []variant{
		repeated("two conditional writes", func(ctx context.Context) error {
			id, owner := redisPrefix+newID(), newID()
			err := r.client.SetArgs(ctx, id, owner, redis.SetArgs{Mode: "NX", TTL: time.Minute}).Err()
			if err != nil {
				return err
			}
			return ifOwned.Run(ctx, r.client, []string{id}, owner, answer300, time.Hour.Milliseconds()).Err()
		}),
		repeated("Do", func(ctx context.Context) error { return r.do(ctx, newID()) }),
	}
}

func (r *redisBench) transactions() []variant {
	quick, first := *redisPay, redisstore.New(r.client, &redisstore.Options{Prefix: redisPrefix, ClaimFirst: true})
	quick.Speculative = true
	return []variant{
		repeated("MULTI", func(ctx context.Context) error {
			id := newID()
			_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.SetArgs(ctx, redisPrefix+id, answer300, redis.SetArgs{Mode: "NX", TTL: time.Hour})
				return p.Set(ctx, redisPrefix+"row "+id, answer300, 0).Err()
			})
			return err
		}),
		repeated("DoTx, Speculative", func(ctx context.Context) error { return r.doTx(ctx, r.store, &quick, newID()) }),
		repeated("DoTx", func(ctx context.Context) error { return r.doTx(ctx, r.store, redisPay, newID()) }),
		repeated("DoTx, ClaimFirst", func(ctx context.Context) error { return r.doTx(ctx, first, redisPay, newID()) }),
	}
}

func (r *redisBench) do(ctx context.Context, id string) error {
	_, err := once.Do(ctx, r.store, redisPay.For(id), func(context.Context, once.Key) (string, error) { return answer300, nil })
	return err
}

func (r *redisBench) doTx(ctx context.Context, s *redisstore.Store, op *once.Operation[string], id string) error {
	_, err := once.DoTx(ctx, s, op.For("tx "+id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
		return answer300, tx.Set(ctx, redisPrefix+"row "+id, answer300, 0).Err()
	})
	return err
}
