//go:build unix

package demo

import (
	"syscall"
	"testing"
)

func TestKillIsSIGKILL(t *testing.T) {
	p := startCat(t)
	if !p.Kill() || p.Kill() {
		t.Error("the first kill is not the first, or the second one is")
	}
	_ = p.Wait()
	if status, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", p.ProcessState)
	}
}

func TestStopLetsTheProcessEnd(t *testing.T) {
	p := startCat(t)
	p.stop()
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// startCat starts a process that says what it is told, its setup first, and lives until its stdin ends.
func startCat(t *testing.T) *process {
	t.Helper()
	p, err := startProcess(t.Context(), []string{"cat"}, setup{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
