//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/internal/testenv"
)

// client returns a client that does not repeat commands.
func client(t *testing.T, i *Instance) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(i.DSN())
	if err != nil {
		t.Fatal(err)
	}
	options.ContextTimeoutEnabled = true
	options.MaxRetries, options.DialerRetries = -1, 1
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func mustSet(t *testing.T, c *redis.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if err := c.Set(ctx, key, value, 0).Err(); err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
}

func mustKeep(t *testing.T, c *redis.Client, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got, err := c.Get(t.Context(), key).Result(); got != value || err != nil {
			t.Fatalf("%s is %q (%v), want %q", key, got, err, value)
		}
	}
	if n, err := c.DBSize(t.Context()).Result(); n != int64(len(want)) || err != nil {
		t.Errorf("there are %d keys (%v), want %d", n, err, len(want))
	}
}

func TestRedisKeepsWhatItHasAcknowledged(t *testing.T) {
	need(t, Redis)
	i := started(t)(StartRedis(t.Context()))
	address, dir := i.Addr(), i.Identity()
	c := client(t, i)
	mustSet(t, c, "one", "1")
	all := members(t, i.process.cmd.Process.Pid)
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	if anyLives(all) {
		t.Errorf("after Kill, some of %v live", all)
	}
	if err := c.Set(t.Context(), "lost", "1", 0).Err(); err == nil {
		t.Error("a killed server has acknowledged a write")
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i.Addr() != address || i.Identity() != dir {
		t.Errorf("restarted as %s on %s, was %s on %s", i.Identity(), i.Addr(), dir, address)
	}
	mustSet(t, c, "two", "2")
	if err := i.Restart(t.Context()); err != nil { // a clean restart this time
		t.Fatal(err)
	}
	mustKeep(t, client(t, i), map[string]string{"one": "1", "two": "2"})
}

// A Redis accepts connections, and answers some commands, while it loads its
// data.
func TestRestartedRedisHasLoadedItsData(t *testing.T) {
	need(t, Redis)
	i := started(t)(StartRedis(t.Context()))
	want := map[string]string{}
	writes := client(t, i).Pipeline()
	for n := range 10000 { // it looks at its connections after every thousand
		key := fmt.Sprint("key", n)
		want[key] = "value"
		writes.Set(t.Context(), key, "value", 0)
	}
	if _, err := writes.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile(i.home.path("redis.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.home.write("redis.conf", string(settings)+"key-load-delay 100\n"); err != nil { // microseconds
		t.Fatal(err)
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustKeep(t, client(t, i), want)
}

func TestPausedRedisIsSilentUntilResumed(t *testing.T) {
	need(t, Redis)
	i := started(t)(StartRedis(t.Context()))
	c := client(t, i)
	mustSet(t, c, "one", "1")
	if err := errors.Join(i.Pause(), i.Pause()); err != nil {
		t.Fatal(err)
	}
	for _, member := range members(t, i.process.cmd.Process.Pid) {
		if !member.stopped() {
			t.Errorf("process %d is in state %s", member.pid, member.state)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if answer, err := c.Ping(soon).Result(); err == nil {
		t.Errorf("a paused server has answered: %s", answer)
	}
	if err := i.Resume(); err != nil {
		t.Fatal(err)
	}
	mustSet(t, c, "two", "2")
	mustKeep(t, c, map[string]string{"one": "1", "two": "2"})
}

func TestPasswordOfRedisIsNotOnItsCommandLine(t *testing.T) {
	need(t, Redis)
	i := started(t)(StartRedis(t.Context()))
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", i.process.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(line), i.engine.(*redisEngine).password) {
		t.Errorf("every account can read it: %q", line)
	}
}
