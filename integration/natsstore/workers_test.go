//go:build linux

package natsstore

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/natswire"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
)

const (
	workerVar = "ONCE_TEST_NATS_WORKER" // the URL, the file of payments, the moment, and the signal
	shortWork = time.Second             // the lease of workers
)

// file is another system: each payment is a line.
type file string

func (f file) pay(id string) error {
	to, err := os.OpenFile(string(f), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	_, err = to.WriteString(id + "\n")
	return err
}

func (f file) times(id string) int {
	text, _ := os.ReadFile(string(f)) // there is none before the first payment
	return strings.Count(string(text), id+"\n")
}

func (f file) operation() *once.Operation[string] {
	return &once.Operation[string]{Name: "pay", Policy: once.Policy{Lease: shortWork},
		Lookup: func(_ context.Context, k once.Key) (string, bool, error) {
			return "paid " + k.ID, f.times(k.ID) > 0, nil
		}}
}

func (f file) do(t *testing.T, s once.Store, id string) {
	t.Helper()
	got, err := once.Do(proof.Soon(t), s, f.operation().For(id), func(context.Context, once.Key) (string, error) {
		return "paid " + id, f.pay(id)
	})
	if err != nil || got != "paid "+id {
		t.Errorf("the answer of %s is %q, %v", id, got, err)
	}
}

// A worker is killed, or stopped until its lease is over, before a request or
// before it learns of the reply. The work is done once, and all learn of it.
func TestWorkersAreKilledAndStoppedAtEachRequest(t *testing.T) {
	server := offices.StartNATS(t)
	s := migrated(t, dial(t, server.URL()), nil)
	payments := file(t.TempDir() + "/payments")
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for _, moment := range []string{"before STREAM.INFO", "before open", "after open", "before done", "after done", "before MSG.DELETE"} {
			t.Run(fmt.Sprint(signal, " ", moment), func(t *testing.T) {
				cmd := exec.Command(os.Args[0], "-test.run=^TestWorker$", "-test.v")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%s|%d", workerVar, server.URL(), payments, moment, int(signal)))
				out := new(strings.Builder)
				cmd.Stdout, cmd.Stderr = out, out
				proof.Must(t, cmd.Start())
				defer cmd.Process.Kill()
				var is syscall.WaitStatus
				_, err := syscall.Wait4(cmd.Process.Pid, &is, syscall.WUNTRACED, nil)
				proof.Must(t, err)
				if stopped := is.Stopped(); stopped != (signal == syscall.SIGSTOP) || !stopped && !is.Signaled() {
					t.Fatalf("the worker was not at this moment: %v\n%s", is, out)
				}
				id := moment + "."
				payments.do(t, s, id)
				if signal == syscall.SIGSTOP {
					proof.Must(t, cmd.Process.Signal(syscall.SIGCONT))
					_, err := syscall.Wait4(cmd.Process.Pid, &is, 0, nil)
					if proof.Must(t, err); is.ExitStatus() != 0 {
						t.Errorf("the worker that went on ended with %d:\n%s", is.ExitStatus(), out)
					}
				}
				if n := payments.times(id); n != 1 {
					t.Errorf("it was paid %d times", n)
				}
				rec, err := s.Get(t.Context(), payments.operation().For(id).Key())
				if err != nil || rec.Status != once.Done {
					t.Errorf("the record is %v, %v", rec.Status, err)
				}
				page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running, once.Unknown, once.Parked}})
				if err != nil || len(page.Records) > 0 {
					t.Errorf("List returned %v, %v", page.Records, err)
				}
				reset(t, s, payments, id)
			})
		}
	}
}

// reset frees the key and removes its payment, for the next signal.
func reset(t *testing.T, s *natsstore.Store, payments file, id string) {
	t.Helper()
	key := payments.operation().For(id).Key()
	rec, err := s.Get(t.Context(), key)
	proof.Must(t, err)
	proof.Must(t, s.Reopen(t.Context(), once.Fence{Key: key, Owner: rec.Owner, Attempt: rec.Attempt}, time.Hour, "for the next signal"))
	proof.Must(t, os.Remove(string(payments)))
}

// TestWorker is the worker, in a process of its own.
func TestWorker(t *testing.T) {
	plan := strings.Split(os.Getenv(workerVar), "|")
	if len(plan) != 4 {
		t.Skip("only for the processes that another test starts")
	}
	when, kind, _ := strings.Cut(plan[2], " ")
	var awaited atomic.Pointer[string] // the inbox of the request
	signalled := make(chan struct{})
	signal := sync.OnceFunc(func() {
		defer close(signalled)
		number := syscall.SIGKILL
		if plan[3] == fmt.Sprint(int(syscall.SIGSTOP)) {
			number = syscall.SIGSTOP
		}
		runtime.LockOSThread() // of this thread: otherwise it may go on for a moment
		defer runtime.UnlockOSThread()
		proof.Must(t, syscall.Tgkill(os.Getpid(), syscall.Gettid(), number))
	})
	w := &natswire.Wire{
		Choose: func(subject, inbox string) natswire.Fault {
			if kindOf(subject) != kind {
				return natswire.None
			}
			if when == "before" {
				signal()
			} else {
				awaited.CompareAndSwap(nil, &inbox)
			}
			return natswire.None
		},
	}
	w.Replied = func(inbox string) {
		if is := awaited.Load(); is != nil && *is == inbox {
			signal()
		}
	}
	file(plan[1]).do(t, natsstore.New(natswire.Connect(t, plan[0], w), nil), plan[2]+".")
	select { // a settlement does not wait for its last request
	case <-signalled:
	case <-proof.Soon(t).Done():
	}
}
