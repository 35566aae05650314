package history

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/redisstore"
)

// redisPlace is a prefix of the shared server. Transactions learn its clock.
func redisPlace(t testing.TB) *place {
	o, err := redis.ParseURL(testenv.Redis(t))
	proof.Must(t, err)
	o.ContextTimeoutEnabled, o.MaxRetries = true, -1
	plain := redis.NewClient(o)
	t.Cleanup(func() { _ = plain.Close() })
	config, err := plain.ConfigGet(t.Context(), "dir").Result()
	proof.Must(t, err)
	testenv.CheckRedis(t, config)
	prefix := fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for keys := plain.Scan(ctx, 0, prefix+"*", 1000).Iterator(); keys.Next(ctx); {
			proof.Must(t, plain.Del(ctx, keys.Val()).Err())
		}
	})
	elsewhere := newLedger()
	return &place{collects: true, resolution: time.Microsecond, brief: shortLease, longest: shortPause, beside: 1, units: 5, open: func(claimFirst bool) (*process, error) {
		l := newLine(shortPause)
		client := redis.NewClient(o)
		client.AddHook(l)
		s := redisstore.New(client, &redisstore.Options{Prefix: prefix, ClaimFirst: claimFirst})
		p := newProcess(once.TxStore[*redisstore.Tx](s), &dialect[*redisstore.Tx]{
			begin: func(context.Context) (*redisstore.Tx, error) { return s.Begin(), nil },
			write: func(ctx context.Context, of *redisstore.Tx, k once.Key, value int64) error {
				return of.RPush(ctx, prefix+nameOf(k), value).Err()
			},
			commit:   func(ctx context.Context, of *redisstore.Tx) error { return of.Commit(ctx) },
			rollback: func(_ context.Context, of *redisstore.Tx) error { of.Rollback(); return nil },
		}, apart{elsewhere, redisEffects{plain, prefix}})
		p.line, p.close = l, func() { _ = client.Close() }
		return p, nil
	}}
}

// redisEffects are lists.
type redisEffects struct {
	*redis.Client
	prefix string
}

func (e redisEffects) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	all, err := e.LRange(ctx, e.prefix+nameOf(k), 0, -1).Result()
	var values []int64
	for _, text := range all {
		value, failed := strconv.ParseInt(text, 10, 64)
		if failed != nil {
			return 0, 0, failed
		}
		values = append(values, value)
	}
	if err != nil || len(values) == 0 {
		return 0, 0, err
	}
	return int64(len(values)), slices.Max(values), nil
}
