package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/tiered"
	"github.com/redis/go-redis/v9"
)

// tieredStages answer duplicates from a cache in Redis. The store is in memory,
// and is not asked.
func tieredStages() []stage {
	return []stage{{name: "tiered duplicates, Redis", loads: workers(1, 8), open: openTiered}}
}

func openTiered(ctx context.Context, _ *bench) (*arena, error) {
	dsn := os.Getenv(testenv.RedisVar)
	if dsn == "" {
		return nil, errNoServer
	}
	o, err := redis.ParseURL(dsn)
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	config, err := client.ConfigGet(ctx, "dir").Result()
	if err == nil {
		err = checkDirectory(testenv.RedisVar, config["dir"], testenv.RedisDataVar)
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	prefix := fmt.Sprintf("bench %d:", time.Now().UnixNano())
	cache := redisstore.NewCache(client, prefix)
	store := tiered.NewTx(memstore.New(nil), cache, nil)
	call := &once.Operation[once.Outcome]{Name: "call", OnUnknown: once.Park, Policy: once.Policy{Wait: once.NoWait}}
	commit := &once.Operation[once.Outcome]{Name: "commit", Policy: once.Policy{Wait: once.NoWait}}
	answer := once.Outcome{Body: []byte(answer300), ContentType: "application/json"}
	do := func(ctx context.Context) error {
		_, err := once.Do(ctx, store, call.For("1"), func(context.Context, once.Key) (once.Outcome, error) { return answer, nil })
		return err
	}
	doTx := func(ctx context.Context) error {
		_, err := once.DoTx(ctx, store, commit.For("1"), func(context.Context, *memstore.Tx) (once.Outcome, error) { return answer, nil })
		return err
	}
	bare := prefix + "bare"
	err = errors.Join(client.Set(ctx, bare, answer300, 0).Err(), do(ctx), doTx(ctx))
	id := call.For("1").Key().UUID()
	names := []string{bare, prefix + string(id[:])}
	id = commit.For("1").Key().UUID()
	closeAll := func() {
		_ = client.Del(context.WithoutCancel(ctx), append(names, prefix+string(id[:]))...).Err()
		_ = client.Close()
	}
	variants := []variant{
		repeated("bare GET", func(ctx context.Context) error { return client.Get(ctx, bare).Err() }),
		repeated("Do, duplicate", do),
		repeated("DoTx, duplicate", doTx),
	}
	if before := store.Stats(); before.Failed > 0 {
		err = errors.Join(err, errors.New("the cache has failed"))
	}
	if err != nil {
		closeAll()
		return nil, err
	}
	return &arena{close: closeAll, contest: func(load) contest { return contest{unit: "call", variants: variants} }}, nil
}
