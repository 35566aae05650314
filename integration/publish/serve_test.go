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

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// subscriber receives webhooks and handles each ID once. Now and then it dies over one.
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

// dies reports whether it dies now, before it has handled something or before it answers.
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

// end sends a signal, and waits for the end.
func (s *service) end(t testing.TB, signal syscall.Signal) error {
	t.Helper()
	must(t, s.cmd.Process.Signal(signal))
	return s.cmd.Wait()
}

func serviceConfig(t testing.TB, dsn, hook string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "once.toml")
	text := fmt.Sprintf(`
url = %q
listen = "127.0.0.1:0"
[webhook]
source = "/shop"
allow = ["127.0.0.0/8"]
allow_http = true
default = {url = %q, secrets = [%q]}
[relay]
lease = "2s"
publish_time = "1s"
retry = {attempts = 10000, first = "20ms", limit = "200ms"}
`, dsn, hook, hookSecret)
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// Two processes of once serve are killed in turn while rows are put. The receiver, which tells copies by webhook-id, has
// lost and doubled nothing, and has had each ordering key in order.
func TestServeKilledInTurn(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "once")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = filepath.Join("..", "..", "cmd", "once")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w := newWorldOn(t, pgTable)
	receiver := newSubscriber(t, newSeed(t))
	config := serviceConfig(t, w.DSN, receiver.url)
	services := []*service{startService(t, binary, config), startService(t, binary, config)}

	const rounds, batch, keys = 3, 60, 5
	want := make(map[string]int64)
	orders := make(map[string][]int64)
	for round := range rounds {
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
	await(t, "all that was committed has come", func() bool { return receiver.count() >= len(want) })
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
	if left := w.count(t, "SELECT count(*) FROM "+table); left > 0 {
		t.Errorf("%d rows are left", left)
	}
	t.Logf("%d messages, %d came again", len(want), receiver.again)
}
