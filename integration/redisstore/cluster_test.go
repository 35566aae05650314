//go:build linux

package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/redis/go-redis/v9"
)

const slots = 16384

// startCluster starts three nodes, each with a third of the slots, and returns
// their addresses.
func startCluster(t *testing.T) (addresses []string) {
	t.Helper()
	ctx := proof.Soon(t)
	const size = 3
	for i := range size {
		n := startNode(t, clusterSettings(t)...)
		proof.Must(t, n.client(t).ClusterAddSlotsRange(ctx, slots*i/size, slots*(i+1)/size-1).Err())
		if i > 0 {
			meet(t, n, addresses[0])
		}
		addresses = append(addresses, n.address)
	}
	for _, address := range addresses {
		c := redis.NewClient(&redis.Options{Addr: address})
		t.Cleanup(func() { _ = c.Close() })
		proof.Await(t, "a node knows the whole cluster", func() bool {
			info, err := c.ClusterInfo(ctx).Result()
			known := fmt.Sprintf("cluster_known_nodes:%d", size)
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, known)
		})
	}
	return addresses
}

func clusterSettings(t *testing.T) []string {
	t.Helper()
	bus, err := server.FreePort()
	proof.Must(t, err)
	return []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--repl-diskless-sync-delay", "0"}
}

// meet joins a node with the cluster of another.
func meet(t *testing.T, n *node, address string) {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	// The client has no form of it with the port of the bus.
	proof.Must(t, n.client(t).Do(proof.Soon(t), "CLUSTER", "MEET", host, port, busOf(t, address)).Err())
}

// busOf returns the port of the bus of a node.
func busOf(t *testing.T, address string) string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: address})
	defer c.Close()
	config, err := c.ConfigGet(t.Context(), "cluster-port").Result()
	proof.Must(t, err)
	return config["cluster-port"]
}

func TestClusterConformance(t *testing.T) {
	addresses := startCluster(t)
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) once.Store {
			c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
			t.Cleanup(func() { _ = c.Close() })
			return redisstore.New(c, nil)
		},
		ListsOpen: true,
		Expires:   true,
	})
}
