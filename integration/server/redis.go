//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisSettings are in a file, because every account can read a command line,
// and with it the password. Every write is on disk in the append-only file
// before its answer, so snapshots are off. The log is the standard output.
const redisSettings = `bind 127.0.0.1
protected-mode yes
requirepass %s
dir %q
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
`

type redisEngine struct {
	program  string
	password string
}

func newRedis() (*redisEngine, error) {
	program, err := findProgram("redis-server")
	if err != nil {
		return nil, err
	}
	return &redisEngine{program: program, password: rand.Text()}, nil
}

func (*redisEngine) kind() Kind { return Redis }

func (*redisEngine) account() string { return "redis" }

func (e *redisEngine) prepare(_ context.Context, h *home) error {
	if err := h.mkdir("data"); err != nil {
		return err
	}
	return h.write("redis.conf", fmt.Sprintf(redisSettings, e.password, e.identity(h)))
}

func (e *redisEngine) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, e.program, h.path("redis.conf"), "--port", strconv.Itoa(port))
}

func (*redisEngine) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGTERM) }

func (e *redisEngine) dsn(port int) string {
	return fmt.Sprintf("redis://:%s@127.0.0.1:%d/0", e.password, port)
}

// identity is the data directory.
func (*redisEngine) identity(h *home) string { return h.path("data") }

// askIdentity fails while the server loads its data: it answers PING only when
// it has, but CONFIG before.
func (*redisEngine) askIdentity(ctx context.Context, dsn string) (string, error) {
	options, err := redis.ParseURL(dsn)
	if err != nil {
		return "", err
	}
	// The client would log that a starting server refuses connections.
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", options.Addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	options.Dialer = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	options.MaxRetries = -1 // there is only this connection
	options.ContextTimeoutEnabled = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return "", err
	}
	config, err := client.ConfigGet(ctx, "dir").Result()
	return config["dir"], err
}
