//go:build linux

package publish

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/integration/internal/offices"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// subscriber receives webhooks and handles each ID once. Now and then it dies
// while it does.
type subscriber struct {
	url string

	mu      sync.Mutex
	chance  *rand.Rand
	handled map[string]int64   // the number in the body of each ID
	order   map[string][]int64 // by ordering key, as they were handled
	again   int                // how many came that were handled before
	wrong   error
}

func newSubscriber(t testing.TB, seed uint64) *subscriber {
	s := &subscriber{chance: rand.New(rand.NewPCG(seed, 7)), handled: make(map[string]int64), order: make(map[string][]int64)}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *subscriber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its sender was killed
	}
	m, err := webhookbroker.Verify([]string{hookSecret}, r.Header, body, 0)
	if s.dies() {
		panic(http.ErrAbortHandler)
	}
	s.take(m, err)
	if s.dies() {
		panic(http.ErrAbortHandler)
	}
}

// dies reports whether it dies now: before it has handled a message, or before
// it answers.
func (s *subscriber) dies() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chance.IntN(40) == 0
}

// take handles a message.
func (s *subscriber) take(m *broker.Message, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.wrong = errors.Join(s.wrong, err)
		return
	}
	seq, err := strconv.ParseInt(string(m.Body), 10, 64)
	before, known := s.handled[m.ID]
	switch {
	case err != nil, known && before != seq:
		s.wrong = errors.Join(s.wrong, fmt.Errorf("message %q has the body %q, and had %d", m.ID, m.Body, before))
	case known:
		s.again++
	default:
		s.handled[m.ID] = seq
		s.order[m.OrderingKey] = append(s.order[m.OrderingKey], seq)
	}
}

func (s *subscriber) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handled)
}

// service is a process of once serve.
type service struct {
	cmd *exec.Cmd
	log bytes.Buffer // to be read when it has ended
}

func startService(t testing.TB, binary, config string) *service {
	t.Helper()
	s := &service{cmd: exec.Command(binary, "serve", "--config", config)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = &s.log
	must(t, s.cmd.Start())
	return s
}

// end sends a signal and waits for the process to end.
func (s *service) end(t testing.TB, signal syscall.Signal) error {
	t.Helper()
	must(t, s.cmd.Process.Signal(signal))
	return s.cmd.Wait()
}

// buildOnce builds the command as a release does, so that its dependencies are compiled once for both.
func buildOnce(t testing.TB) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "once")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Dir = filepath.Join("..", "..", "cmd", "once")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// serviceConfig writes a configuration that publishes to one place.
func serviceConfig(t testing.TB, dsn, to string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "once.toml")
	text := fmt.Sprintf(`
url = %q
listen = "127.0.0.1:0"
[relay]
lease = "2s"
publish_time = "1s"
retry = {attempts = 10000, first = "20ms", limit = "200ms"}
%s`, dsn, to)
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func toHook(url string) string {
	return fmt.Sprintf(`
[webhook]
source = "/shop"
allow = ["127.0.0.0/8"]
allow_http = true
default = {url = %q, secrets = [%q]}
`, url, hookSecret)
}

// Two processes of once serve are killed in turn while rows are put. The
// receiver, which recognises copies by webhook-id, has every message once, and
// each ordering key in order.
func TestServeKilledInTurn(t *testing.T) {
	binary := buildOnce(t)
	w := newWorldOn(t, pgTable)
	receiver := newSubscriber(t, newSeed(t))
	config := serviceConfig(t, w.DSN, toHook(receiver.url))
	services := []*service{startService(t, binary, config), startService(t, binary, config)}

	const rounds, batch, keys = 3, 60, 5
	soak, begun := soaking(t), time.Now()
	want := make(map[string]int64)
	orders := make(map[string][]int64)
	for round := 0; round < rounds || time.Since(begun) < soak; round++ {
		for i := range batch {
			seq := int64(round*batch + i)
			key := ""
			if i%4 > 0 {
				key = fmt.Sprint("key ", i%keys)
			}
			doomed := i%10 == 7
			err := w.own(t.Context(), func(x tx) error {
				if err := x.put(0, message(fmt.Sprint("m.", seq), key, seq)); err != nil || !doomed {
					return err
				}
				return errDoomed
			})
			if doomed != errors.Is(err, errDoomed) {
				t.Fatal(err)
			}
			if !doomed {
				want[fmt.Sprint("m.", seq)] = seq
				orders[key] = append(orders[key], seq)
			}
			if i == batch/2 { // in the middle of its work, wherever that is
				victim := round % len(services)
				await(t, "some of a round have come", func() bool { return receiver.count() > round*batch*9/10+5 })
				_ = services[victim].end(t, syscall.SIGKILL) // it says that it was killed
				services[victim] = startService(t, binary, config)
			}
		}
	}
	settled(t, patience, func() (open []string) {
		if left := len(want) - receiver.count(); left > 0 {
			open = append(open, fmt.Sprintf("%d of %d messages", left, len(want)))
		}
		if left := w.count(t, "SELECT count(*) FROM "+table); left > 0 { // the receiver has had it before its answer was heard
			open = append(open, fmt.Sprintf("%d rows", left))
		}
		return open
	})
	for _, s := range services {
		if err := s.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("%v: %s", err, s.log.String())
		}
	}

	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if receiver.wrong != nil {
		t.Error(receiver.wrong)
	}
	for id, seq := range receiver.handled {
		if was, put := want[id]; !put || was != seq {
			t.Errorf("message %s with %d was never committed", id, seq)
		}
	}
	for key, got := range receiver.order {
		if key != "" && !slices.Equal(got, orders[key]) {
			t.Errorf("%s: came as %v, was put as %v", key, got, orders[key])
		}
	}
	t.Logf("%d messages, %d came again", len(want), receiver.again)
}

// The server is down when once serve starts, and again later. Messages that
// were put meanwhile arrive in order.
func TestServeOutlivesNATS(t *testing.T) {
	binary := buildOnce(t)
	w := newWorldOn(t, pgTable)
	server := offices.StartNATS(t)
	js, err := offices.DialNATS(server.URL())
	must(t, err)
	defer js.Conn().Close()
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	must(t, err)
	server.Stop()
	s := startService(t, binary, serviceConfig(t, w.DSN, fmt.Sprintf("[nats]\nurl = %q\n", server.URL())))
	var want []string
	put := func(n int) {
		for range n {
			seq := int64(len(want))
			must(t, w.own(t.Context(), func(x tx) error { return x.put(0, message(fmt.Sprint("m.", seq), "k", seq)) }))
			want = append(want, fmt.Sprint("m.", seq))
		}
	}
	drained := func() bool { return w.count(t, "SELECT count(*) FROM "+table) == 0 }
	put(5)
	server.Start(t)
	await(t, "what was put before has come", drained)
	server.Stop()
	put(5)
	server.Start(t)
	await(t, "what was put meanwhile has come", drained)
	if err := s.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("%v: %s", err, s.log.String())
	}

	stream, err := js.Stream(t.Context(), "orders")
	must(t, err)
	info, err := stream.Info(t.Context())
	must(t, err)
	var got []string
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		must(t, err)
		got = append(got, m.Header.Get("Nats-Msg-Id"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("came as %v, was put as %v", got, want)
	}
}
