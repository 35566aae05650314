package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/internal/testenv"
)

// redisCarrier is Redis itself. The server syncs every write.
func redisCarrier() carrier {
	return carrier{name: "Redis Streams", client: "go-redis, XREADGROUP of 10, XACK", away: time.Millisecond, batch: 10,
		open: func(ctx context.Context, away time.Duration) (*depot, error) { return openRedisStreams(ctx, away) }}
}

func openRedisStreams(ctx context.Context, away time.Duration) (*depot, error) {
	address := os.Getenv(testenv.RedisVar)
	if address == "" {
		return nil, errNoServer
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	near, err := redis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	via, unroute, err := routed(u.Host, away)
	if err != nil {
		return nil, err
	}
	far := *near
	far.Addr = via
	nearby, farther := redis.NewClient(near), redis.NewClient(&far)
	directory, err := nearby.ConfigGet(ctx, "dir").Result()
	if own := os.Getenv(testenv.RedisDataVar); err == nil && directory["dir"] != own {
		err = fmt.Errorf("the server has its data in %s, and not in %s", directory["dir"], own)
	}
	if err != nil {
		unroute()
		return nil, errors.Join(err, nearby.Close(), farther.Close())
	}
	b := redisbroker.New(nearby, nil)
	d := &depot{publisher: b.Publisher(), work: func(ctx context.Context) (time.Duration, error) { return redisWork(ctx, nearby) }}
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: redisPrefix + newID()}
		if err := b.DeclareGroup(ctx, q.topic, redisGroup); err != nil {
			return nil, err
		}
		q.source = redisbroker.New(farther, nil).Group(q.topic, redisGroup)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return redisLoop(ctx, farther, q.topic, s, handle)
		}
		q.drop = func() { nearby.Unlink(context.WithoutCancel(ctx), q.topic) }
		return q, nil
	}
	d.close = func() {
		_ = d.publisher.Close()
		_, _ = nearby.Close(), farther.Close()
		unroute()
	}
	return d, nil
}

const redisGroup = "bench"

// redisLoop reads and acknowledges ten entries at a time, in one consumer of the
// group for each worker.
func redisLoop(ctx context.Context, client *redis.Client, stream string, s queueShape, handle handleBatch) error {
	return inWorkers(ctx, s.workers, func(ctx context.Context, worker int) error {
		streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: redisGroup, Consumer: fmt.Sprint(worker),
			Streams: []string{stream, ">"}, Count: int64(s.batch), Block: 100 * time.Millisecond}).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		var bodies [][]byte
		var ids []string
		for _, m := range streams[0].Messages {
			body, _ := m.Values["body"].(string)
			bodies, ids = append(bodies, []byte(body)), append(ids, m.ID)
		}
		patient := context.WithoutCancel(ctx)
		if err := handle(patient, bodies); err != nil {
			return err
		}
		return client.XAck(patient, stream, redisGroup, ids...).Err()
	})
}

// redisWork returns the processor time of the server.
func redisWork(ctx context.Context, client *redis.Client) (sum time.Duration, err error) {
	info, err := client.InfoMap(ctx, "cpu").Result()
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		if err == nil {
			var seconds float64
			seconds, err = strconv.ParseFloat(info["CPU"][name], 64)
			sum += time.Duration(seconds * float64(time.Second))
		}
	}
	return sum, err
}
