//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitmqScript is what Debian's /usr/sbin/rabbitmq-server runs, as the account rabbitmq only.
const rabbitmqScript = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// rabbitmqSettings name the first user, so that there is no guest. What is logged goes to the home's log.
const rabbitmqSettings = `default_user = once
default_pass = %s
log.console.level = warning
`

// rabbitmqAlone is for every Erlang that is started, by RabbitMQ too: once a minute it has one look after epmd, which
// would start it, and epmd would outlive us. A node that listens for no other node needs neither; the port of one,
// which nobody looks at, stands for having asked epmd.
const rabbitmqAlone = "-dist_listen false -start_epmd false -erl_epmd_port 1"

// rabbitmqFlags: two schedulers that do not spin are kind to the other servers.
const rabbitmqFlags = "-sname %s +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"

type rabbitmq struct {
	script   string
	password string
	settings []string
}

func newRabbitMQ(settings []string) (*rabbitmq, error) {
	script, err := exec.LookPath(rabbitmqScript)
	if err != nil {
		return nil, fmt.Errorf("RabbitMQ is not installed: %w; run the servers tool with -install", err)
	}
	return &rabbitmq{script: script, password: rand.Text(), settings: settings}, nil
}

func (*rabbitmq) kind() Kind { return RabbitMQ }

func (*rabbitmq) account() string { return "rabbitmq" }

func (e *rabbitmq) prepare(_ context.Context, h *home) error {
	settings := fmt.Sprintf(rabbitmqSettings, e.password) + strings.Join(append(e.settings, ""), "\n")
	for name, text := range map[string]string{
		"rabbitmq.conf": settings, "enabled_plugins": "[].\n",
		".erlang.cookie": rand.Text(), // Erlang would make one up out of the date
	} {
		if err := h.write(name, text); err != nil {
			return err
		}
	}
	return nil
}

// launch has the script become the Erlang machine, as it does under systemd, so that our signals reach that.
func (e *rabbitmq) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, "env", append(e.environment(h, port), e.script)...)
}

func (e *rabbitmq) environment(h *home, port int) []string {
	node := e.identity(h) + "@localhost"
	return []string{
		"ERL_AFLAGS=" + rabbitmqAlone,
		"ERL_EPMD_PORT=1", // nobody's: one that happens to run is not told of the node
		"RUNNING_UNDER_SYSTEMD=true",
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + h.path("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + h.path("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + h.path("data"),
		"RABBITMQ_LOG_BASE=" + h.path("tmp"), "RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE=" + h.path("pid"),
		"RABBITMQ_NODENAME=" + node,
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", fmt.Sprintf("RABBITMQ_NODE_PORT=%d", port),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + fmt.Sprintf(rabbitmqFlags, node),
	}
}

func (*rabbitmq) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGTERM) }

func (e *rabbitmq) dsn(port int) string {
	return fmt.Sprintf("amqp://once:%s@127.0.0.1:%d/", e.password, port)
}

// identity is the name of the node, and so what the cluster's name begins with.
func (*rabbitmq) identity(h *home) string { return filepath.Base(h.dir) }

// askIdentity is told the cluster's name before it shows the password, but has to be let in.
func (*rabbitmq) askIdentity(ctx context.Context, dsn string) (string, error) {
	conn, err := amqp.DialConfig(dsn, amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}})
	if err != nil {
		return "", err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	cluster, _ := conn.Properties["cluster_name"].(string)
	node, _, _ := strings.Cut(cluster, "@")
	return node, nil
}
