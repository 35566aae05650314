//go:build linux

package redisstore

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
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
	server.Need(t, server.Redis)
	program, err := exec.LookPath("redis-server")
	proof.Must(t, err)
	ctx := proof.Soon(t)
	const size = 3
	for n := range size {
		port, err := server.FreePort()
		proof.Must(t, err)
		bus, err := server.FreePort()
		proof.Must(t, err)
		cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--cluster-enabled", "yes",
			"--cluster-port", strconv.Itoa(bus), "--dir", t.TempDir(), "--save", "", "--maxmemory-policy", "noeviction")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		proof.Must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		c := redis.NewClient(&redis.Options{Addr: address})
		t.Cleanup(func() { _ = c.Close() })
		proof.Await(t, "a node answers", func() bool { return c.Ping(ctx).Err() == nil })
		proof.Must(t, c.ClusterAddSlotsRange(ctx, slots*n/size, slots*(n+1)/size-1).Err())
		if n > 0 {
			host, first, _ := strings.Cut(addresses[0], ":")
			// The client has no form of it with the port of the bus.
			proof.Must(t, c.Do(ctx, "CLUSTER", "MEET", host, first, busOf(t, addresses[0])).Err())
		}
		addresses = append(addresses, address)
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
