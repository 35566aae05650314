package target

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/store/redisstore"
)

// openRedis opens one server, or through Sentinel if the URL has a master_name, or
// a cluster. Further servers are in parameters addr.
func openRedis(u *url.URL, own own, o *Options) (*Target, error) {
	client, err := redisClient(u, own, o)
	if err != nil {
		return nil, refuse("%v", err) // go-redis quotes only parameters that it does not know
	}
	keys := redisstore.New(client, &redisstore.Options{Options: o.Options, Prefix: own.prefix, Slot: own.slot})
	return &Target{Store: keys, Engine: Redis, Redis: client, close: client.Close,
		now: func(ctx context.Context) (time.Time, error) { return client.Time(ctx).Result() },
		byHand: func(ctx context.Context, key string, keep time.Duration) error {
			for _, mode := range []string{"NX", "XX"} {
				if err := client.SetArgs(ctx, key, "as long as a record with its outcome, or nearly", redis.SetArgs{Mode: mode, TTL: keep}).Err(); err != nil {
					return err
				}
			}
			return nil
		}}, nil
}

func redisClient(u *url.URL, own own, o *Options) (redis.UniversalClient, error) {
	pool := func(size *int) {
		if o.Connections > 0 {
			*size = o.Connections
		}
	}
	switch {
	case own.cluster:
		with, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		pool(&with.PoolSize)
		return redis.NewClusterClient(with), nil
	case u.Query().Has("master_name"):
		with, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, err
		}
		pool(&with.PoolSize)
		return redis.NewFailoverClient(with), nil
	}
	with, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	pool(&with.PoolSize)
	return redis.NewClient(with), nil
}

// NewRedis returns a client of the servers of a URL, which has the form of that of
// a store, without the parameters of a store. It does not connect. Its errors do
// not contain the URL, which may have a password.
func NewRedis(text string) (redis.UniversalClient, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || engineOf(u.Scheme) != Redis {
		return nil, refuse("it is not of the form redis://user:password@host:6379/0")
	}
	q := u.Query()
	var o own
	if cluster := q.Get("cluster"); cluster != "" {
		if o.cluster, err = strconv.ParseBool(cluster); err != nil {
			return nil, refuse("the parameter cluster is %q: write cluster=true, or omit it", cluster)
		}
		q.Del("cluster")
		u.RawQuery = q.Encode()
	}
	client, err := redisClient(u, o, new(Options))
	if err != nil {
		return nil, refuse("%v", err) // go-redis quotes only parameters that it does not know
	}
	return client, nil
}
