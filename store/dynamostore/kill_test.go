//go:build linux

package dynamostore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/dynamostore"
)

const workerVar = "ONCE_DYNAMO_WORKER"

func TestMain(m *testing.M) {
	if task := os.Getenv(workerVar); task != "" {
		work(strings.Fields(task))
		os.Exit(0)
	}
	logtest.Main(m)
}

// ledger is another system: it does each payment as often as it is asked.
type ledger struct {
	mu   sync.Mutex
	paid map[string]int
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := r.URL.Query().Get("id")
	if r.Method == http.MethodPost {
		l.paid[id]++
	}
	fmt.Fprint(w, l.paid[id])
}

func (l *ledger) count(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paid[id]
}

func atLedger(method, url, id string) (n int, err error) {
	request, err := http.NewRequest(method, url+"?id="+id, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// The ways of work of a worker.
const (
	byDo    = "do"
	byTx    = "tx"
	byFirst = "first" // in a transaction that claims first
)

// work is a worker: it does work for ids, and sends itself a signal at one of
// its requests.
//
//	URL LEDGER WAY SIGNAL REQUEST PLACE ID...
func work(task []string) {
	url, ledgerURL, way, place := task[0], task[1], task[2], task[5]
	signal, _ := strconv.Atoi(task[3])
	at, _ := strconv.Atoi(task[4])
	s := dynamostore.New(dial(url, withHTTP(&mortal{at: at, place: place, signal: syscall.Signal(signal)})),
		&dynamostore.Options{ClaimFirst: way == byFirst})
	op := &once.Operation[string]{Name: "pay", Policy: once.Policy{Lease: 300 * time.Millisecond},
		Lookup: func(_ context.Context, k once.Key) (string, bool, error) {
			n, err := atLedger(http.MethodGet, ledgerURL, k.ID)
			return "paid", n > 0, err
		}}
	inShop := &shop{table: "shop"}
	for _, id := range task[6:] {
		for {
			err := error(nil)
			if way == byDo {
				_, err = once.Do(context.Background(), s, op.For(id), func(context.Context, once.Key) (string, error) {
					_, err := atLedger(http.MethodPost, ledgerURL, id)
					return "paid", err
				})
			} else {
				_, err = once.DoTx(context.Background(), s, op.For(id), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
					return "paid", inShop.effect(tx, id)
				})
			}
			if err == nil {
				break
			}
			fmt.Fprintln(os.Stderr, id, err)
		}
	}
	fmt.Println("done")
}

// mortal is a way to the service on which the process gets a signal at its n-th
// request.
type mortal struct {
	at     int
	place  string
	signal syscall.Signal

	mu   sync.Mutex
	made int
}

func (m *mortal) Do(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	m.made++
	now := m.made == m.at
	m.mu.Unlock()
	if now && m.place == "before" {
		m.strike()
	}
	response, err := http.DefaultClient.Do(r)
	if now && m.place == "after" {
		m.strike()
	}
	return response, err
}

func (m *mortal) strike() { _ = syscall.Kill(os.Getpid(), m.signal) }

// scene is a service, a ledger, and workers of them.
type scene struct {
	*world
	ledger    *ledger
	ledgerURL string
}

func newScene(t *testing.T) *scene {
	s := &scene{world: newWorldAt(t, new(dynamofake.Server)), ledger: &ledger{paid: make(map[string]int)}}
	server := httptest.NewServer(s.ledger)
	t.Cleanup(server.Close)
	s.ledgerURL = server.URL
	return s
}

// worker starts a worker. Its output is read by finished.
func (s *scene) worker(t *testing.T, way string, signal syscall.Signal, at int, place string, ids ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVar+"="+strings.Join(append([]string{s.url, s.ledgerURL, way,
		strconv.Itoa(int(signal)), strconv.Itoa(at), place}, ids...), " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// finishes runs a worker, and reports whether it came to its end.
func finishes(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return err == nil && string(out) == "done\n"
}

// effects returns how often the work of an id took effect.
func (s *scene) effects(t *testing.T, way, id string) int {
	t.Helper()
	if way == byDo {
		return s.ledger.count(id)
	}
	n, err := s.count(context.Background(), id)
	must(t, err)
	return n
}

// A worker dies before or after each of its requests, and another one goes on.
func TestWorkersDieAtEachRequest(t *testing.T) {
	for _, way := range []string{byDo, byTx, byFirst} {
		for _, place := range []string{"before", "after"} {
			t.Run(way+" "+place, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				died, at := 0, 1
				for ; ; at++ {
					id := strconv.Itoa(at)
					finished := finishes(t, s.worker(t, way, syscall.SIGKILL, at, place, id))
					if !finished {
						died++
						if !finishes(t, s.worker(t, way, 0, 0, "never", id)) {
							t.Errorf("after a death at request %d the work is not done", at)
						}
					}
					if n := s.effects(t, way, id); n != 1 {
						t.Errorf("after a death at request %d there were %d effects", at, n)
					}
					if finished {
						break
					}
				}
				if died < 3 {
					t.Errorf("the worker died at %d places", died)
				}
			})
		}
	}
}

// Workers that share their work are killed at random moments.
func TestWorkersDieAtAnyMoment(t *testing.T) {
	const workers, works = 3, 25
	for _, way := range []string{byDo, byTx, byFirst} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			var ids []string
			for i := range works {
				ids = append(ids, strconv.Itoa(i))
			}
			var working sync.WaitGroup
			for n := range workers {
				working.Go(func() {
					mine := append([]string(nil), ids...)
					rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					for deaths := 0; ; deaths++ {
						at := 2 + rand.N(30) // requests
						if deaths == 5 {
							at = 0 // none
						}
						if finishes(t, s.worker(t, way, syscall.SIGKILL, at, []string{"before", "after"}[n%2], mine...)) {
							return
						}
						if deaths == 5 {
							t.Error("a worker that nobody killed did not finish")
							return
						}
					}
				})
			}
			working.Wait()
			for _, id := range ids {
				if n := s.effects(t, way, id); n != 1 {
					t.Errorf("the work %s had %d effects", id, n)
				}
			}
		})
	}
}

// A worker is stopped with its commit in hand, past its lease. Another one does
// the work. The first goes on, and its commit is refused.
func TestAWorkerStallsPastItsLease(t *testing.T) {
	for _, way := range []string{byTx, byFirst} {
		for at := 2; at <= 4; at++ {
			t.Run(fmt.Sprint(way, at), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				stalled := s.worker(t, way, syscall.SIGSTOP, at, "before", "1")
				out, err := stalled.StdoutPipe()
				must(t, err)
				must(t, stalled.Start())
				said := make(chan string, 1)
				go func() {
					line, _ := bufio.NewReader(out).ReadString('\n')
					said <- line
				}()
				testenv.Await(t, "the worker stops", func() bool {
					text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", stalled.Process.Pid))
					must(t, err)
					after := string(text[strings.LastIndexByte(string(text), ')')+1:])
					return strings.HasPrefix(after, " T") || len(said) > 0
				})
				if !finishes(t, s.worker(t, way, 0, 0, "never", "1")) {
					t.Error("the other worker did not finish")
				}
				must(t, stalled.Process.Signal(syscall.SIGCONT))
				if line := <-said; line != "done\n" {
					t.Errorf("the stalled worker said %q", line)
				}
				must(t, stalled.Wait())
				if n := s.effects(t, way, "1"); n != 1 {
					t.Errorf("there were %d effects", n)
				}
			})
		}
	}
}
