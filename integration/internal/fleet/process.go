//go:build linux

// Package fleet runs the binary of a test as other processes, which tests kill,
// stop and replace. A plan, a value in JSON, tells a process what to do. It
// reads lines of its input, and prints lines.
package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
)

const planVar = "ONCE_FLEET_PLAN"

// IsProcess reports whether the binary was started as a process of this package.
func IsProcess() bool { return os.Getenv(planVar) != "" }

// Main is for the TestMain of a package. The binary runs its tests, or work if
// it was started as a process of this package. Then the context ends with the
// input, and the channel delivers its lines.
func Main[P any](m *testing.M, work func(context.Context, P, <-chan struct{}) error) {
	text := os.Getenv(planVar)
	if text == "" {
		os.Exit(m.Run())
	}
	var plan P
	err := json.Unmarshal([]byte(text), &plan)
	if err == nil {
		err = listen(plan, work)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "process:", err)
		os.Exit(1)
	}
}

func listen[P any](plan P, work func(context.Context, P, <-chan struct{}) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan struct{})
	go func() {
		for in := bufio.NewReader(os.Stdin); ; {
			if _, err := in.ReadString('\n'); err != nil {
				cancel()
				return
			}
			lines <- struct{}{}
		}
	}()
	return work(ctx, plan, lines)
}

// DieNow kills the process that calls it, and does not return.
func DieNow() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// Process is a process that a test started. It is killed at the end of the
// test.
type Process struct {
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      chan string // the lines that it prints
	ended      chan struct{}
	dismissed  atomic.Bool // it was told to end
	complained complaints
}

// complaints may be read and written concurrently.
type complaints struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *complaints) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(text)
}

// Start starts a process.
func Start(t testing.TB, plan any) *Process {
	t.Helper()
	text, err := json.Marshal(plan)
	proof.Must(t, err)
	p := &Process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 10_000), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), planVar+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &p.complained
	p.in, err = p.cmd.StdinPipe()
	proof.Must(t, err)
	out, err := p.cmd.StdoutPipe()
	proof.Must(t, err)
	proof.Must(t, p.cmd.Start())
	go func() {
		for said := bufio.NewScanner(out); said.Scan(); {
			p.lines <- said.Text()
		}
		close(p.lines)
		_ = p.cmd.Wait() // its state says how it ended
		close(p.ended)
	}()
	return p
}

// Hear waits for a line with a prefix.
func (p *Process) Hear(t testing.TB, line string) string {
	t.Helper()
	deadline := time.After(proof.Patience)
	for {
		select {
		case said, ok := <-p.lines:
			if !ok {
				<-p.ended
				t.Fatalf("the process ended before it said %q: %s", line, p.Complaints())
			}
			if strings.HasPrefix(said, line) {
				return said
			}
		case <-deadline:
			t.Fatalf("the process did not say %q: %s", line, p.Complaints())
		}
	}
}

// Tell writes a line to its input.
func (p *Process) Tell(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(p.in, "\n")
	proof.Must(t, err)
}

// Signal sends a signal. It does nothing if the process has ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Stop sends SIGSTOP, and returns when no thread of the process runs any
// longer. Until then, a thread may go on and take a lock.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.Signal(syscall.SIGSTOP)
	proof.Await(t, "all threads of the process are stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		proof.Must(t, err)
		for _, file := range threads {
			stat, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			_, state, _ := strings.Cut(string(stat), ") ")
			if !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
				return false
			}
		}
		return true
	})
}

// Ended is closed when it has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Complaints returns what it has written to its standard error.
func (p *Process) Complaints() string {
	p.complained.mu.Lock()
	defer p.complained.mu.Unlock()
	return p.complained.text.String()
}

// WasKilled reports whether a process that has ended was killed.
func (p *Process) WasKilled() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// Leave tells it to end, and waits.
func (p *Process) Leave(t testing.TB) {
	t.Helper()
	p.dismiss()
	select {
	case <-p.ended:
		if !p.cmd.ProcessState.Success() && !p.WasKilled() {
			t.Errorf("a process ended with %v: %s", p.cmd.ProcessState, p.Complaints())
		}
	case <-time.After(proof.Patience):
		p.Signal(syscall.SIGKILL)
		<-p.ended
		t.Errorf("a process did not end in order: %s", p.Complaints())
	}
}

// dismiss tells it to end, and does not wait.
func (p *Process) dismiss() {
	p.dismissed.Store(true)
	_ = p.in.Close()
}
