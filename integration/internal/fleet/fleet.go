//go:build linux

package fleet

import (
	"sync"
	"syscall"
	"testing"
)

// Fleet keeps processes running: whatever is killed, or relieved, is started anew.
type Fleet struct {
	t    testing.TB
	plan func(n int) any

	mu      sync.Mutex
	running []*Process
	started int
	killed  int
	words   string // the last ones of those that have ended
	stopped bool
	minders sync.WaitGroup
}

// Keep starts a fleet of that size, and stops it with the test. The function returns the plan of the n-th process that
// is started, from 1 on.
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
		f.stopped = true // it would end like this again and again
		f.t.Errorf("a process ended by itself with %v: %s", p.cmd.ProcessState, p.Complaints())
	}
}

// of is the process of a slot; nil: there is none yet.
func (f *Fleet) of(slot int) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[slot%len(f.running)]
}

// Kill kills the process of a slot, wherever it is in its work.
func (f *Fleet) Kill(slot int) {
	if p := f.of(slot); p != nil {
		p.Signal(syscall.SIGKILL)
	}
}

// Relieve lets the process of a slot end in order. Another one comes in its place.
func (f *Fleet) Relieve(slot int) {
	if p := f.of(slot); p != nil {
		p.Leave(f.t)
	}
}

// Stop lets all processes end in order.
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

// Started is how many processes there were.
func (f *Fleet) Started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// Deaths is how many of them were killed, by whomever.
func (f *Fleet) Deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// LastWords are the last complaints of those that run, and of the last one that has ended.
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
