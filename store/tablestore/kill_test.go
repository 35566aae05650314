//go:build linux

package tablestore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

const workerVar = "ONCE_TABLES_WORKER"

func TestMain(m *testing.M) {
	if task := os.Getenv(workerVar); task != "" {
		if err := work(strings.Fields(task)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	logtest.Main(m)
}

// The ways of work of a worker.
const (
	byDo    = "do"    // an effect in another system, which is a partition of the table
	byTx    = "tx"    // an entity in the transaction
	byFirst = "first" // in a transaction that claims first
)

// work is a worker: it does work for ids, and sends itself a signal at one of the
// requests of its store.
//
//	TABLE WAY SIGNAL REQUEST PLACE LOSSES ID...
func work(task []string) error {
	table, way, place := task[0], task[1], task[4]
	signal, _ := strconv.Atoi(task[2])
	at, _ := strconv.Atoi(task[3])
	losses, _ := strconv.Atoi(task[5])
	service, err := aztables.NewServiceClientFromConnectionString(os.Getenv(testenv.AzuriteVar), nil)
	if err != nil {
		return err
	}
	other := service.NewClient(table)
	o := &aztables.ClientOptions{}
	o.PerRetryPolicies = []policy.Policy{&mortal{at: at, place: place, signal: syscall.Signal(signal), losses: losses}}
	if service, err = aztables.NewServiceClientFromConnectionString(os.Getenv(testenv.AzuriteVar), o); err != nil {
		return err
	}
	options := &tablestore.Options{ClaimFirst: way == byFirst}
	if way != byDo {
		options.Partition = inOne
	}
	s := tablestore.New(service.NewClient(table), options)
	op := &once.Operation[string]{Name: "pay", SettleTime: 300 * time.Millisecond, Policy: once.Policy{Lease: time.Second},
		Lookup: func(ctx context.Context, k once.Key) (string, bool, error) {
			n, err := count(ctx, other, k.ID)
			return "paid", n > 0, err
		}}
	effectOf := func(id string) aztables.TransactionAction {
		return effect("all", fmt.Sprint(os.Getpid(), " ", time.Now().UnixNano()), id)
	}
	for _, id := range task[6:] {
		for end := time.Now().Add(time.Minute); ; {
			if way == byDo {
				_, err = once.Do(context.Background(), s, op.For(id), func(ctx context.Context, _ once.Key) (string, error) {
					_, err := other.AddEntity(ctx, effectOf(id).Entity, nil)
					return "paid", err
				})
			} else {
				_, err = once.DoTx(context.Background(), s, op.For(id), func(_ context.Context, tx *tablestore.Tx) (string, error) {
					return "paid", tx.Write(effectOf(id))
				})
			}
			if err == nil {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s is not done: %w", id, err)
			}
		}
	}
	fmt.Println("done")
	return nil
}

// mortal is a policy by which the process gets a signal at its n-th request, and
// loses one in so many requests or replies.
type mortal struct {
	at     int
	place  string
	signal syscall.Signal
	losses int // 0: none

	mu   sync.Mutex
	made int
}

func (m *mortal) Do(req *policy.Request) (*http.Response, error) {
	m.mu.Lock()
	m.made++
	now := m.made == m.at
	m.mu.Unlock()
	if now && m.place == "before" {
		_ = syscall.Kill(os.Getpid(), m.signal)
	}
	if m.losses > 0 {
		switch rand.IntN(2 * m.losses) {
		case 0:
			return loseRequest(req)
		case 1:
			return loseReply(req)
		}
	}
	resp, err := req.Next()
	if now && m.place == "after" {
		_ = syscall.Kill(os.Getpid(), m.signal)
	}
	return resp, err
}

// scene is a table, and workers on it.
type scene struct {
	name   string
	client *aztables.Client
}

func newScene(t *testing.T) *scene {
	t.Helper()
	name := fmt.Sprintf("kill%d", time.Now().UnixNano())
	c := dial(t, name)
	must(t, tablestore.New(c, nil).Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := c.Delete(context.Background(), nil)
		must(t, err)
	})
	return &scene{name, c}
}

func (s *scene) worker(way string, signal syscall.Signal, at int, place string, losses int, ids ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVar+"="+strings.Join(append([]string{s.name, way, strconv.Itoa(int(signal)), strconv.Itoa(at),
		place, strconv.Itoa(losses)}, ids...), " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// finishes runs a worker, and reports whether it came to its end.
func finishes(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.Exited()) {
		t.Errorf("a worker ended with %v: %s", err, &complaints)
	}
	return err == nil && string(out) == "done\n"
}

func (s *scene) wantOne(t *testing.T, id, after string) {
	t.Helper()
	if n, err := count(t.Context(), s.client, id); n != 1 || err != nil {
		t.Errorf("after %s, %s had %d effects, %v", after, id, n, err)
	}
}

// A worker dies before or after each of its requests, and another one goes on.
func TestWorkersDieAtEachRequest(t *testing.T) {
	for _, way := range []string{byDo, byTx, byFirst} {
		s := newScene(t)
		for _, place := range []string{"before", "after"} {
			died := 0
			for at := 1; ; at++ {
				id := fmt.Sprint(place, at)
				finished := finishes(t, s.worker(way, syscall.SIGKILL, at, place, 0, id))
				if !finished {
					died++
					if !finishes(t, s.worker(way, 0, 0, "never", 0, id)) {
						t.Errorf("%s: after a death %s request %d, the work is not done", way, place, at)
					}
				}
				s.wantOne(t, id, fmt.Sprint(way, ": a death ", place, " request ", at))
				if finished || t.Failed() {
					break
				}
			}
			if died < 3 {
				t.Errorf("%s: a worker died %s %d requests", way, place, died)
			}
		}
	}
}

// Workers that share their work are killed at random requests, while requests and
// replies are lost.
func TestWorkersDieAtAnyMoment(t *testing.T) {
	const workers, works, deaths = 3, 20, 4
	for _, way := range []string{byDo, byTx, byFirst} {
		s := newScene(t)
		var ids []string
		for i := range works {
			ids = append(ids, fmt.Sprint("work", i))
		}
		var working sync.WaitGroup
		for n := range workers {
			working.Go(func() {
				mine := append([]string(nil), ids...)
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				for range deaths {
					finishes(t, s.worker(way, syscall.SIGKILL, 2+rand.IntN(20), []string{"before", "after"}[n%2], 10, mine...))
				}
				if !finishes(t, s.worker(way, 0, 0, "never", 10, mine...)) {
					t.Errorf("%s: a worker that nobody killed did not finish", way)
				}
			})
		}
		working.Wait()
		for _, id := range ids {
			s.wantOne(t, id, way)
		}
	}
}

// A worker is stopped before a request, past its lease. Another one does the work.
// The first goes on, and is refused.
func TestAWorkerStallsPastItsLease(t *testing.T) {
	for _, way := range []string{byTx, byFirst} {
		s := newScene(t)
		for at := 2; at <= 4; at++ {
			id := fmt.Sprint("at", at)
			stalled := s.worker(way, syscall.SIGSTOP, at, "before", 0, id)
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
				_, state, _ := strings.Cut(string(text), ") ")
				return strings.HasPrefix(state, "T") || len(said) > 0
			})
			if !finishes(t, s.worker(way, 0, 0, "never", 0, id)) {
				t.Errorf("%s: the other worker did not finish", way)
			}
			must(t, stalled.Process.Signal(syscall.SIGCONT))
			if line := <-said; line != "done\n" {
				t.Errorf("%s: the stalled worker said %q", way, line)
			}
			must(t, stalled.Wait())
			s.wantOne(t, id, fmt.Sprint(way, ": a stall before request ", at))
		}
	}
}
