// Package natsproc runs NATS servers in processes of their own, which can be
// killed before they write anything.
package natsproc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Process is a server.
type Process struct {
	Settings Settings
	cmd      *exec.Cmd
	stdin    io.Closer
}

// Settings configures a server.
type Settings struct {
	Name        string
	Port        int
	StoreDir    string
	SyncLater   bool     // to disk every two minutes, as is the default of NATS; otherwise before each reply
	ClusterPort int      // 0: alone
	Routes      []string // of the cluster
}

const settingsVar = "ONCE_TEST_NATS_SERVER"

// Serve is the server of a Process, if this program runs as one. It ends with
// its parent. A test named TestNATSProcess has to call it.
func Serve(t *testing.T) {
	text := os.Getenv(settingsVar)
	if text == "" {
		t.Skip("only for the processes that other tests start")
	}
	var set Settings
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	o := &server.Options{
		ServerName: set.Name, Host: "127.0.0.1", Port: set.Port,
		JetStream: true, StoreDir: set.StoreDir, SyncAlways: !set.SyncLater,
		MaxPayload: 8 << 20, NoLog: true, NoSigs: true,
	}
	if set.ClusterPort > 0 {
		o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: set.ClusterPort}
		o.Routes = server.RoutesFromStr(strings.Join(set.Routes, ","))
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	io.Copy(io.Discard, os.Stdin) // until the other end is closed
	s.Shutdown()
}

// Start starts a server, which is killed at the end of the test.
func Start(tb testing.TB, set Settings) *Process {
	tb.Helper()
	if testing.Short() { // it is killed and waited for, which takes a minute or two
		tb.Skip("starts servers of its own: run it without -short")
	}
	set.Port, set.StoreDir = offices.FreePort(tb), tb.TempDir()
	p := &Process{Settings: set}
	tb.Cleanup(p.Kill)
	p.Start(tb)
	return p
}

// StartCluster starts three servers, which choose leaders for streams of three
// replicas.
func StartCluster(tb testing.TB, set Settings) []*Process {
	tb.Helper()
	var ports []int
	for range 3 {
		port := offices.FreePort(tb)
		ports = append(ports, port)
		set.Routes = append(set.Routes, "nats://127.0.0.1:"+strconv.Itoa(port))
	}
	var all []*Process
	for i, port := range ports {
		set.Name, set.ClusterPort = fmt.Sprintf("n%d", i), port
		all = append(all, Start(tb, set))
	}
	return all
}

// URL returns the address of the server.
func (p *Process) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(p.Settings.Port) }

// Start starts a server that was killed, with its files.
func (p *Process) Start(tb testing.TB) {
	tb.Helper()
	text, err := json.Marshal(p.Settings)
	if err != nil {
		tb.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestNATSProcess$", "-test.timeout=10m")
	p.cmd.Env = append(os.Environ(), settingsVar+"="+string(text))
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	proof.Await(tb, "the server takes connections", func() bool {
		nc, err := nats.Connect(p.URL())
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
}

// Kill sends SIGKILL and waits for the process to end.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait() // says that it was killed
	p.stdin.Close()
}

// Restart kills the server, and starts it again with its files.
func (p *Process) Restart(tb testing.TB) {
	tb.Helper()
	p.Kill()
	p.Start(tb)
}

// Leader waits until a stream has a leader and all its replicas are current, and
// returns the server of the leader. If consumer is not empty, it is the leader of
// that consumer.
func Leader(tb testing.TB, all []*Process, js jetstream.JetStream, stream, consumer string) (leads *Process) {
	tb.Helper()
	proof.Await(tb, "the stream has a leader, and the others keep up", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return false
		}
		cluster := s.CachedInfo().Cluster
		if consumer != "" {
			c, err := s.Consumer(ctx, consumer)
			if err != nil {
				return false
			}
			cluster = c.CachedInfo().Cluster
		}
		current := 0
		for _, r := range cluster.Replicas {
			if r.Current {
				current++
			}
		}
		for _, p := range all {
			if p.Settings.Name == cluster.Leader {
				leads = p
			}
		}
		return leads != nil && current == len(all)-1
	})
	return leads
}
