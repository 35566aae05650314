//go:build linux

package fleet

import (
	"sync"
	"syscall"
	"testing"
)

// Fleet keeps processes running. It replaces those that are killed or told to
// end.
type Fleet struct {
	t    testing.TB
	plan func(n int) any

	mu      sync.Mutex
	running []*Process
	started int
	killed  int
	words   string // of the last process that ended
	stopped bool
	minders sync.WaitGroup
}

// Keep starts a fleet of a size, and stops it with the test. plan returns the
// plan of the n-th process that is started, from 1.
func Keep(t testing.TB, size int, plan func(n int) any) *Fleet {
	t.Helper()
	f := &Fleet{t: t, plan: plan, running: make([]*Process, size)}
	for slot := range size {
		f.minders.Go(func() { f.mind(slot) })
	}
	t.Cleanup(f.Stop)
	return f
}

func (f *Fleet) mind(slot int) {
	for p := f.start(slot); p != nil; p = f.start(slot) {
		for range p.lines {
		}
		<-p.ended
		f.note(p)
	}
}

func (f *Fleet) start(slot int) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil
	}
	f.started++
	f.running[slot] = Start(f.t, f.plan(f.started))
	return f.running[slot]
}

// note counts the end of a process.
func (f *Fleet) note(p *Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text := lastOf(p); text != "" {
		f.words = text
	}
	switch {
	case p.WasKilled():
		f.killed++
	case !p.cmd.ProcessState.Success() || !p.dismissed.Load():
		f.stopped = true // it would end again and again
		f.t.Errorf("a process ended by itself with %v: %s", p.cmd.ProcessState, p.Complaints())
	}
}

// of returns the process of a slot, or nil if there is none yet.
func (f *Fleet) of(slot int) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[slot%len(f.running)]
}

// Kill kills the process of a slot.
func (f *Fleet) Kill(slot int) {
	if p := f.of(slot); p != nil {
		p.Signal(syscall.SIGKILL)
	}
}

// Relieve tells the process of a slot to end. Another replaces it.
func (f *Fleet) Relieve(slot int) {
	if p := f.of(slot); p != nil {
		p.Leave(f.t)
	}
}

// Stop tells all processes to end, and waits.
func (f *Fleet) Stop() {
	f.mu.Lock()
	f.stopped = true
	running := f.running
	f.mu.Unlock()
	for _, p := range running {
		if p != nil {
			p.dismiss()
		}
	}
	for _, p := range running {
		if p != nil {
			p.Leave(f.t)
		}
	}
	f.minders.Wait()
}

// Started returns how many processes were started.
func (f *Fleet) Started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// Deaths returns how many of them were killed.
func (f *Fleet) Deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// LastWords returns the last complaints of running processes, and of the last
// one that ended.
func (f *Fleet) LastWords() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := f.words
	for _, p := range f.running {
		if p != nil {
			words += "\n---\n" + lastOf(p)
		}
	}
	return words
}

func lastOf(p *Process) string {
	text := p.Complaints()
	return text[max(0, len(text)-3000):]
}
