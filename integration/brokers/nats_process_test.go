package brokers_test

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
)

// natsProcess is a server in its own process, which can be killed before it
// writes anything.
type natsProcess struct {
	settings natsSettings
	cmd      *exec.Cmd
	stdin    io.Closer
}

type natsSettings struct {
	Name        string
	Port        int
	StoreDir    string
	ClusterPort int      // 0: alone
	Routes      []string // of the cluster
}

const natsSettingsVar = "ONCE_TEST_NATS_SERVER"

// TestNATSProcess is the server of a natsProcess if this binary runs as one. It
// ends with its parent.
func TestNATSProcess(t *testing.T) {
	text := os.Getenv(natsSettingsVar)
	if text == "" {
		t.Skip("only for the processes that other tests start")
	}
	var set natsSettings
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	o := &server.Options{
		ServerName: set.Name, Host: "127.0.0.1", Port: set.Port,
		JetStream: true, StoreDir: set.StoreDir, SyncAlways: true,
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

func startNATSProcess(tb testing.TB, set natsSettings) *natsProcess {
	tb.Helper()
	if testing.Short() { // it is killed and waited for, which takes a minute or two
		tb.Skip("starts servers of its own: run it without -short")
	}
	set.Port, set.StoreDir = offices.FreePort(tb), tb.TempDir()
	p := &natsProcess{settings: set}
	tb.Cleanup(p.kill)
	p.start(tb)
	return p
}

func (p *natsProcess) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(p.settings.Port) }

func (p *natsProcess) start(tb testing.TB) {
	tb.Helper()
	text, err := json.Marshal(p.settings)
	if err != nil {
		tb.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestNATSProcess$", "-test.timeout=10m")
	p.cmd.Env = append(os.Environ(), natsSettingsVar+"="+string(text))
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

// kill sends SIGKILL and waits for the process to end.
func (p *natsProcess) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait() // says that it was killed
	p.stdin.Close()
}

func (p *natsProcess) restart(tb testing.TB) {
	tb.Helper()
	p.kill()
	p.start(tb)
}

// startNATSCluster starts three servers, which choose leaders for streams of
// three replicas.
func startNATSCluster(tb testing.TB) []*natsProcess {
	tb.Helper()
	var ports []int
	var routes []string
	for range 3 {
		port := offices.FreePort(tb)
		ports = append(ports, port)
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(port))
	}
	var all []*natsProcess
	for i, port := range ports {
		all = append(all, startNATSProcess(tb, natsSettings{Name: fmt.Sprintf("n%d", i), ClusterPort: port, Routes: routes}))
	}
	return all
}

// killNATSLeader kills the server that leads the stream or its consumer, and
// restarts it.
func killNATSLeader(tb testing.TB, all []*natsProcess, p *natsPlace, ofConsumer bool) {
	tb.Helper()
	leader := ""
	proof.Await(tb, "the stream has a leader, and the others keep up", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		stream, err := p.js.Stream(ctx, p.stream)
		if err != nil {
			return false
		}
		cluster := stream.CachedInfo().Cluster
		if ofConsumer {
			consumer, err := stream.Consumer(ctx, "billing")
			if err != nil {
				return false
			}
			cluster = consumer.CachedInfo().Cluster
		}
		current := 0
		for _, r := range cluster.Replicas {
			if r.Current {
				current++
			}
		}
		leader = cluster.Leader
		return leader != "" && current == len(all)-1
	})
	for _, s := range all {
		if s.settings.Name == leader {
			s.restart(tb)
		}
	}
}
