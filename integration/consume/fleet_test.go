//go:build linux

package consume

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a consumer in a process of its own.
type process struct {
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      chan string // what it says
	ended      chan struct{}
	complained strings.Builder // to be read when it has ended
}

func startProcess(t testing.TB, p plan) *process {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	child := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 100), ended: make(chan struct{})}
	child.cmd.Env = append(os.Environ(), planVar+"="+string(text))
	child.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.cmd.Stderr = &child.complained
	child.in, err = child.cmd.StdinPipe()
	must(t, err)
	out, err := child.cmd.StdoutPipe()
	must(t, err)
	must(t, child.cmd.Start())
	go func() {
		for said := bufio.NewScanner(out); said.Scan(); {
			child.lines <- said.Text()
		}
		close(child.lines)
		_ = child.cmd.Wait() // how it ended is in its state
		close(child.ended)
	}()
	return child
}

// hear waits for a line that begins like this.
func (p *process) hear(t testing.TB, line string) string {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case said, ok := <-p.lines:
			if !ok {
				<-p.ended
				t.Fatalf("the process ended before it said %q: %s", line, p.complained.String())
			}
			if strings.HasPrefix(said, line) {
				return said
			}
		case <-deadline:
			t.Fatalf("the process did not say %q", line)
		}
	}
}

func (p *process) tell(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(p.in, "\n")
	must(t, err)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// wasKilled reports how a process that has ended did that.
func (p *process) wasKilled() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// leave lets it end in order.
func (p *process) leave(t testing.TB) {
	t.Helper()
	_ = p.in.Close()
	select {
	case <-p.ended:
		if !p.cmd.ProcessState.Success() && !p.wasKilled() {
			t.Errorf("a consumer ended with %v: %s", p.cmd.ProcessState, p.complained.String())
		}
	case <-time.After(time.Minute):
		p.kill()
		t.Errorf("a consumer did not end in order: %s", p.complained.String())
	}
}

// fleet keeps processes running: whatever is killed is started anew.
type fleet struct {
	t    testing.TB
	plan plan

	mu      sync.Mutex
	running []*process
	started int
	killed  int // by whomever
	stopped bool
	minders sync.WaitGroup
}

func startFleet(t testing.TB, p plan, size int) *fleet {
	t.Helper()
	f := &fleet{t: t, plan: p, running: make([]*process, size)}
	for slot := range size {
		f.minders.Go(func() { f.mind(slot) })
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fleet) mind(slot int) {
	for {
		p := f.start(slot)
		if p == nil {
			return
		}
		go func() {
			for range p.lines {
			}
		}()
		<-p.ended
		if f.ended(p) {
			return
		}
	}
}

func (f *fleet) start(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil
	}
	f.started++
	plan := f.plan
	plan.Name = "p" + strconv.Itoa(f.started)
	f.running[slot] = startProcess(f.t, plan)
	return f.running[slot]
}

// ended counts the end of a process, and reports whether that is all.
func (f *fleet) ended(p *process) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.wasKilled() {
		f.killed++
		return f.stopped
	}
	if !p.cmd.ProcessState.Success() || !f.stopped {
		f.t.Errorf("a consumer ended with %v: %s", p.cmd.ProcessState, p.complained.String())
		return true
	}
	return f.stopped
}

// killOne kills the process of a slot, wherever it is in its work.
func (f *fleet) killOne(slot int) {
	f.mu.Lock()
	p := f.running[slot%len(f.running)]
	f.mu.Unlock()
	if p != nil {
		p.signal(syscall.SIGKILL)
	}
}

// stop lets all processes end in order.
func (f *fleet) stop() {
	f.mu.Lock()
	f.stopped = true
	running := f.running
	f.mu.Unlock()
	for _, p := range running {
		if p != nil {
			p.leave(f.t)
		}
	}
	f.minders.Wait()
}

func (f *fleet) deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}
