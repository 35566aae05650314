//go:build linux

package publish

import (
	"bufio"
	"bytes"
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

// process is one of a test's own, in which its program does something else.
type process struct {
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      chan string // what it says
	ended      chan struct{}
	complained complaints
}

// complaints may be read while they are written.
type complaints struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *complaints) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(text)
}

func (c *complaints) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func startProcess(t testing.TB, p plan) *process {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	child := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 10_000), ended: make(chan struct{})}
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
	deadline := time.After(patience)
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
			t.Fatalf("the process did not say %q: %s", line, p.complained.String())
		}
	}
}

func (p *process) tell(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(p.in, "\n")
	must(t, err)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

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
			t.Errorf("a process ended with %v: %s", p.cmd.ProcessState, p.complained.String())
		}
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.ended
		t.Errorf("a process did not end in order: %s", p.complained.String())
	}
}

// fleet keeps processes running: whatever ends is started anew.
type fleet struct {
	t    testing.TB
	plan plan

	mu      sync.Mutex
	running []*process
	started int
	killed  int
	words   string // the last ones of those that have ended
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
	for p := f.start(slot); p != nil; p = f.start(slot) {
		for range p.lines {
		}
		<-p.ended
		f.note(p)
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
	plan.Name = plan.Role + strconv.Itoa(f.started)
	plan.Seed += uint64(f.started)
	f.running[slot] = startProcess(f.t, plan)
	return f.running[slot]
}

// note counts the end of a process.
func (f *fleet) note(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text := p.complained.String(); text != "" {
		f.words = text[max(0, len(text)-2000):]
	}
	switch {
	case p.wasKilled():
		f.killed++
	case !p.cmd.ProcessState.Success():
		f.stopped = true // it would end like this again and again
		f.t.Errorf("a process ended with %v: %s", p.cmd.ProcessState, p.complained.String())
	}
}

// of is the process of a slot; nil: there is none yet.
func (f *fleet) of(slot int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[slot%len(f.running)]
}

// kill kills the process of a slot, wherever it is in its work.
func (f *fleet) kill(slot int) {
	if p := f.of(slot); p != nil {
		p.signal(syscall.SIGKILL)
	}
}

// relieve lets the process of a slot end in order. Another one comes in its place.
func (f *fleet) relieve(slot int) {
	if p := f.of(slot); p != nil {
		p.leave(f.t)
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
			_ = p.in.Close()
		}
	}
	for _, p := range running {
		if p != nil {
			p.leave(f.t)
		}
	}
	f.minders.Wait()
}

// lastWords are what those said that have ended, and those that run.
func (f *fleet) lastWords() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := f.words
	for _, p := range f.running {
		if p != nil {
			text := p.complained.String()
			words += "\n---\n" + text[max(0, len(text)-1000):]
		}
	}
	return words
}
