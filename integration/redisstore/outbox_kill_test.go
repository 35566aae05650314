//go:build linux

package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// bySentinel begins an address that is those of Sentinels. Their primary has to
// be followed by a replica that confirms.
const bySentinel = "sentinels:"

// openPlace opens the store of a proof with killed processes.
func openPlace(address string) (*killproof.Place[*redisstore.Tx], error) {
	o := &redisstore.Options{}
	c := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true})
	if sentinels, ok := strings.CutPrefix(address, bySentinel); ok {
		c = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "once", SentinelAddrs: strings.Split(sentinels, ","),
			MaxRetries: -1, ContextTimeoutEnabled: true})
		o.Replicas, o.ConfirmTimeout = 1, 500*time.Millisecond
	}
	return &killproof.Place[*redisstore.Tx]{
		Store: redisstore.New(c, o),
		Note: func(ctx context.Context, tx *redisstore.Tx, list, entry string) error {
			return tx.RPush(ctx, list, entry).Err()
		},
		Noted: func(ctx context.Context, list string) ([]string, error) { return c.LRange(ctx, list, 0, -1).Result() },
	}, nil
}

func TestKilledProcessesLoseNoMessage(t *testing.T) {
	killproof.Run(t, killproof.Setting[*redisstore.Tx]{
		Make: func(t *testing.T) string { return startNode(t).address },
		Open: openPlace,
	})
}

// The server is killed, too. What it has confirmed is in its file.
func TestKilledProcessesAndAKilledServerLoseNoMessage(t *testing.T) {
	var n *node
	kills := 0
	killproof.Run(t, killproof.Setting[*redisstore.Tx]{
		Make: func(t *testing.T) string {
			n = startNode(t, "--appendonly", "yes", "--appendfsync", "everysec")
			return n.address
		},
		Open: openPlace,
		Disturb: func(t *testing.T) {
			if kills++; kills%3 == 0 {
				n.kill()
				n.start(t)
			}
		},
	})
}

// Sentinels promote a replica while processes work and are killed. What they have
// confirmed a replica has, so nothing is lost.
func TestKilledProcessesAndAFailoverLoseNoMessage(t *testing.T) {
	var primary *node
	kills := 0
	killproof.Run(t, killproof.Setting[*redisstore.Tx]{
		Make: func(t *testing.T) string {
			kills = 0
			primary, _ = startReplicated(t, 2, "--min-replicas-to-write", "1")
			return bySentinel + strings.Join(startSentinels(t, primary, 2), ",")
		},
		Open: openPlace,
		Disturb: func(*testing.T) {
			if kills++; kills == 4 {
				primary.kill()
			}
		},
	})
}
