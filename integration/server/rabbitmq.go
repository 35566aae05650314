//go:build linux

package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/internal/backoff"
)

// rabbitmqScript is what Debian's /usr/sbin/rabbitmq-server runs, but only as
// the account rabbitmq.
const rabbitmqScript = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// rabbitmqSettings name the first user, so that there is no guest. Logs go to
// the log of the home.
const rabbitmqSettings = `default_user = ` + rabbitmqUser + `
default_pass = %s
log.console.level = warning
`

const (
	rabbitmqUser = "once"
	rabbitmqHost = "@localhost" // of the names of nodes
)

// rabbitmqAlone configures every Erlang, including those that RabbitMQ starts.
// Once a minute RabbitMQ looks for epmd, which would start it, and epmd would
// outlive us. A node that does not listen for other nodes needs no epmd; a
// fixed port that nobody uses avoids asking it.
const rabbitmqAlone = "-dist_listen false -start_epmd false -erl_epmd_port 1"

// rabbitmqFlags start two schedulers that do not spin, which leaves the
// processors to the other servers.
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
	return e.write(h, "", "[].\n", rand.Text()) // Erlang would derive a cookie from the date
}

// write writes the files of a node, with more settings and with its plugins.
func (e *rabbitmq) write(h *home, more, plugins, cookie string) error {
	settings := fmt.Sprintf(rabbitmqSettings, e.password) + more + strings.Join(append(e.settings, ""), "\n")
	for name, text := range map[string]string{
		"rabbitmq.conf": settings, "enabled_plugins": plugins, ".erlang.cookie": cookie,
	} {
		if err := h.write(name, text); err != nil {
			return err
		}
	}
	return nil
}

// launch replaces the script by the Erlang machine, as under systemd, so that
// our signals reach it.
func (e *rabbitmq) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, "env", append(e.environment(h, port), e.script)...)
}

func (e *rabbitmq) environment(h *home, port int) []string {
	return append(e.named(h, port, e.identity(h)+rabbitmqHost),
		"ERL_AFLAGS="+rabbitmqAlone,
		"ERL_EPMD_PORT=1") // nobody listens there, so a running epmd does not learn of the node
}

// named is the environment of a node of a name, without how it finds others.
func (*rabbitmq) named(h *home, port int, node string) []string {
	return []string{
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

// AwaitDeclared waits until a RabbitMQ has on disk what was declared before the
// call. Version 3.10 mostly syncs its tables before it answers, but not always:
// after a SIGKILL it may come up without a queue, or a binding, that it had
// confirmed a moment ago. The tables are written in order, so a queue that is
// declared now is written last.
func (i *Instance) AwaitDeclared(ctx context.Context) error {
	conn, err := amqp.Dial(i.DSN())
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	last := "last-" + rand.Text()
	if _, err = ch.QueueDeclare(last, true, false, false, false, nil); err != nil {
		return err
	}
	tables := i.home.path(filepath.Join("data", i.Identity()+rabbitmqHost, "*"))
	pause := backoff.Backoff{First: 5 * time.Millisecond, Limit: 50 * time.Millisecond}
	for {
		files, err := filepath.Glob(tables)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, _ := os.ReadFile(file) // those of the log come and go
			if bytes.Contains(text, []byte(last)) {
				_, err = ch.QueueDelete(last, false, false, false)
				return err
			}
		}
		if late := backoff.Sleep(ctx, pause.Next()); late != nil {
			return fmt.Errorf("RabbitMQ has not written its tables: %w", late)
		}
	}
}

func (*rabbitmq) shutdown(p *process) error { return p.cmd.Process.Signal(syscall.SIGTERM) }

func (e *rabbitmq) dsn(port int) string {
	return fmt.Sprintf("amqp://%s:%s@127.0.0.1:%d/", rabbitmqUser, e.password, port)
}

// identity is the name of the node, which is the prefix of the cluster's name.
func (*rabbitmq) identity(h *home) string { return filepath.Base(h.dir) }

// askIdentity learns the cluster's name before it sends the password, but must
// log in to finish.
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
