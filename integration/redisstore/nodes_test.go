//go:build linux

package redisstore

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/redis/go-redis/v9"
)

// node is a server with settings of a test.
type node struct {
	address, dir string
	args         []string
	cmd          *exec.Cmd
}

// startNode starts a server. It has no append-only file and writes no snapshots,
// unless the settings say otherwise.
func startNode(t *testing.T, settings ...string) *node {
	t.Helper()
	server.Need(t, server.Redis)
	port, err := server.FreePort()
	proof.Must(t, err)
	n := &node{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: t.TempDir()}
	n.args = append([]string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", n.dir, "--save", "",
		"--maxmemory-policy", "noeviction"}, settings...)
	n.start(t)
	t.Cleanup(n.kill)
	return n
}

// start starts a server, also one that was killed, and waits until it answers.
func (n *node) start(t *testing.T) {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	proof.Must(t, err)
	n.cmd = exec.Command(program, n.args...)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proof.Must(t, n.cmd.Start())
	c, ctx := n.client(t), proof.Soon(t)
	proof.Await(t, "a server answers", func() bool { return c.Ping(ctx).Err() == nil })
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

func (n *node) options() *redis.Options {
	return &redis.Options{Addr: n.address, MaxRetries: -1, ContextTimeoutEnabled: true}
}

func (n *node) client(t *testing.T) *redis.Client {
	c := redis.NewClient(n.options())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// has reports whether a section of INFO has a line.
func (n *node) has(t *testing.T, section, line string) bool {
	t.Helper()
	info, err := n.client(t).Info(proof.Soon(t), section).Result()
	return err == nil && strings.Contains(info, line+"\r\n")
}

// follower is the user that replicas have at their primary.
var follower = []string{"--user", "follower", "on", ">pw", "~*", "&*", "+@all", "--masteruser", "follower", "--masterauth", "pw"}

// startReplicated starts a primary with replicas.
func startReplicated(t *testing.T, replicas int, settings ...string) (primary *node, followers []*node) {
	t.Helper()
	settings = append(settings, follower...)
	settings = append(settings, "--repl-diskless-sync-delay", "0")
	primary = startNode(t, settings...)
	host, port, _ := strings.Cut(primary.address, ":")
	for range replicas {
		followers = append(followers, startNode(t, append(settings, "--replicaof", host+" "+port)...))
	}
	await(t, primary, replicas)
	return primary, followers
}

// await waits until a primary has that many replicas that are up to date.
func await(t *testing.T, primary *node, replicas int) {
	t.Helper()
	c := primary.client(t)
	proof.Await(t, "the replicas follow", func() bool {
		info, err := c.Info(proof.Soon(t), "replication").Result()
		return err == nil && strings.Count(info, "state=online") == replicas
	})
}

// cut cuts replication off, and leaves the servers reachable for others.
func cut(t *testing.T, primary *node, followers []*node) {
	t.Helper()
	c, ctx := primary.client(t), proof.Soon(t)
	proof.Must(t, c.Do(ctx, "ACL", "SETUSER", "follower", "off").Err())
	proof.Must(t, c.ClientKillByFilter(ctx, "TYPE", "replica").Err())
	proof.Await(t, "the primary has no replicas", func() bool { return primary.has(t, "replication", "connected_slaves:0") })
	for _, f := range followers {
		proof.Await(t, "a replica is cut off", func() bool { return f.has(t, "replication", "master_link_status:down") })
	}
}

// promote makes a replica the primary, as a failover does.
func promote(t *testing.T, n *node) {
	t.Helper()
	proof.Must(t, n.client(t).Do(proof.Soon(t), "REPLICAOF", "NO", "ONE").Err())
}

// startSentinels starts three Sentinels, and returns their addresses.
func startSentinels(t *testing.T, primary *node, replicas int) (addresses []string) {
	t.Helper()
	host, port, _ := strings.Cut(primary.address, ":")
	const size = 3
	for range size {
		own, err := server.FreePort()
		proof.Must(t, err)
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		settings := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %q\nsentinel monitor once %s %s 2\nsentinel down-after-milliseconds once 500\n"+
			"sentinel failover-timeout once 3000\n", own, filepath.Dir(file), host, port)
		proof.Must(t, os.WriteFile(file, []byte(settings), 0o600))
		s := &node{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(own)), args: []string{file, "--sentinel"}}
		s.start(t)
		t.Cleanup(s.kill)
		addresses = append(addresses, s.address)
	}
	for _, address := range addresses {
		c := redis.NewSentinelClient(&redis.Options{Addr: address})
		t.Cleanup(func() { _ = c.Close() })
		proof.Await(t, "a Sentinel knows the others and the replicas", func() bool {
			is, err := c.Master(proof.Soon(t), "once").Result()
			return err == nil && is["num-other-sentinels"] == strconv.Itoa(size-1) && is["num-slaves"] == strconv.Itoa(replicas)
		})
	}
	return addresses
}

// dialSentinels returns a client of the primary that they name.
func dialSentinels(t *testing.T, sentinels []string) *redis.Client {
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "once", SentinelAddrs: sentinels, MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}
