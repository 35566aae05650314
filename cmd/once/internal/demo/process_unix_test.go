//go:build unix

package demo

import (
	"syscall"
	"testing"
)

func TestKillIsSIGKILL(t *testing.T) {
	p := startCat(t)
	p.kill()
	if status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", p.command.ProcessState)
	}
}

func TestStopLetsTheWorkerEnd(t *testing.T) {
	if err := startCat(t).stop(); err != nil {
		t.Error(err)
	}
	p := startCat(t)
	p.command.Process.Kill()
	if p.stop() == nil {
		t.Error("a worker that did not end by itself is taken for one that did")
	}
}

// startCat starts a process that lives until its stdin ends.
func startCat(t *testing.T) *process {
	t.Helper()
	p, err := startProcess(t.Context(), []string{"cat"}, setup{})
	if err != nil {
		t.Fatal(err)
	}
	var echo setup
	if err := p.answers.Decode(&echo); err != nil { // it runs
		t.Fatal(err)
	}
	return p
}
