package redisstore

import (
	"errors"
	"testing"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// A transaction is for the records of its store only: what another store has read
// of a key would be committed to the wrong server.
func TestTransactionsOfOtherServersAreRefused(t *testing.T) {
	at := func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) }
	behindSentinels := func(master string) redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: master, SentinelAddrs: []string{"localhost:1"}})
	}
	one := behindSentinels("orders")
	for name, c := range map[string]struct {
		a, b redis.UniversalClient
		same bool
	}{
		"one server":             {at("a:1"), at("a:1"), true},
		"two servers":            {at("a:1"), at("b:1"), false},
		"two masters":            {behindSentinels("orders"), behindSentinels("bills"), false},
		"one client of a master": {one, one, true},
	} {
		a, b := New(c.a, nil), New(c.b, nil)
		if err := a.Begin().use(b); errors.Is(err, once.ErrInvalid) == c.same {
			t.Errorf("%s: the other store returned %v", name, err)
		}
		_, _ = c.a.Close(), c.b.Close()
	}
}
