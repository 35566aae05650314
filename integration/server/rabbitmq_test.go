//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/internal/testenv"
)

// connect connects to a RabbitMQ.
func connect(t *testing.T, i *Instance) *amqp.Connection {
	t.Helper()
	conn, err := amqp.DialConfig(i.DSN(), amqp.Config{Dial: amqp.DefaultDial(10 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now()) })
	return conn
}

// channel returns a channel in confirm mode with a durable queue "kept".
func channel(t *testing.T, i *Instance) *amqp.Channel {
	t.Helper()
	ch, err := connect(t, i).Channel()
	if err == nil {
		_, err = ch.QueueDeclare("kept", true, false, false, false, nil)
	}
	if err = errors.Join(err, ch.Confirm(false)); err != nil {
		t.Fatal(err)
	}
	return ch
}

func mustPublish(t *testing.T, ch *amqp.Channel, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	confirmed, err := publish(ctx, ch, text)
	if err != nil || !confirmed {
		t.Fatalf("publish %q: %v, confirmed: %v", text, err, confirmed)
	}
}

func publish(ctx context.Context, ch *amqp.Channel, text string) (confirmed bool, err error) {
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "kept", true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(text)})
	if err != nil {
		return false, err
	}
	return confirm.WaitContext(ctx)
}

// mustHold consumes the queue and checks its contents.
func mustHold(t *testing.T, ch *amqp.Channel, want ...string) {
	t.Helper()
	var got []string
	for {
		d, ok, err := ch.Get("kept", true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got = append(got, string(d.Body))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the queue held %q, want %q", got, want)
	}
}

func TestRabbitMQKeepsWhatItHasConfirmed(t *testing.T) {
	need(t, RabbitMQ)
	i := started(t)(StartRabbitMQ(t.Context()))
	address, name := i.Addr(), i.Identity()
	ch := channel(t, i)
	if err := i.AwaitDeclared(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, ch, "one")
	all := members(t, i.process.cmd.Process.Pid)
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	if anyLives(all) {
		t.Errorf("after Kill, some of %v live", all)
	}
	if confirmed, err := publish(t.Context(), ch, "lost"); err == nil && confirmed {
		t.Error("a killed server has confirmed a message")
	}
	if err := i.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i.Addr() != address || i.Identity() != name {
		t.Errorf("restarted as %s on %s, was %s on %s", i.Identity(), i.Addr(), name, address)
	}
	mustPublish(t, channel(t, i), "two")
	if err := i.Restart(t.Context()); err != nil { // a clean restart this time
		t.Fatal(err)
	}
	mustHold(t, channel(t, i), "one", "two")
}

func TestPausedRabbitMQIsSilentUntilResumed(t *testing.T) {
	need(t, RabbitMQ)
	i := started(t)(StartRabbitMQ(t.Context()))
	ch := channel(t, i)
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
	if confirmed, err := publish(soon, ch, "one"); err == nil {
		t.Errorf("a paused server has answered: %v", confirmed)
	}
	if err := i.Resume(); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, ch, "two")
	mustHold(t, ch, "one", "two")
}

func TestRabbitMQListensForItsClientsOnly(t *testing.T) {
	need(t, RabbitMQ)
	before := epmds(t)
	i := started(t)(StartRabbitMQ(t.Context(), "heartbeat = 7"))
	if got := connect(t, i).Config.Heartbeat; got != 7*time.Second {
		t.Errorf("the heartbeat is %v: the setting was not taken", got)
	}
	// The node does this once a minute.
	starter := []string{"erl", "-sname", "starter", "-noinput", "-s", "erlang", "halt"}
	environment := i.engine.(*rabbitmq).environment(i.home, i.port)
	if err := i.home.run(t.Context(), "env", append(environment, starter...)...); err != nil {
		t.Error(err)
	}
	if after := epmds(t); len(after) > len(before) {
		t.Errorf("an epmd was started: %v, before there were %v", after, before)
	}
	open := listening(t)
	found := map[string]bool{}
	for _, member := range members(t, i.process.cmd.Process.Pid) {
		for _, socket := range sockets(t, member.pid) {
			found[open[socket]] = true
		}
	}
	delete(found, "") // not listening
	if want := fmt.Sprintf("0100007F:%04X", i.port); !found[want] || len(found) != 1 {
		t.Errorf("it listens on %v, want %s only", found, want)
	}
}

// epmds returns the epmd processes, which leave the process tree of their
// starter.
func epmds(t *testing.T) (pids []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && string(text) == "epmd\n" {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// listening maps listening sockets, as named by /proc/PID/fd, to address and
// port.
func listening(t *testing.T) map[string]string {
	t.Helper()
	open := map[string]string{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); fields[3] == "0A" {
				open["socket:["+fields[9]+"]"] = fields[1]
			}
		}
	}
	return open
}

func sockets(t *testing.T, pid int) (names []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrPermission) {
		t.Skip("this process may not see what another account's has open")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // helpers of the server come and go
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && strings.HasPrefix(name, "socket:") {
			names = append(names, name)
		}
	}
	return names
}
