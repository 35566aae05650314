// Package trial has what the demo and the proof of a program share: processes
// that are killed, requests that are repeated, and effects that are counted.
package trial

import (
	"os/exec"
	"sync/atomic"
)

// Process is a process that was started to be killed.
type Process struct {
	*exec.Cmd
	group  bool
	killed atomic.Bool
}

// Start starts a process. It ends when the context of the command ends.
func Start(cmd *exec.Cmd) (*Process, error) { return start(&Process{Cmd: cmd}) }

// StartGroup is Start for a command that may start processes of its own, as a shell
// does. They end with it, where the system knows groups of processes. Ctrl-C in a
// terminal does not reach them.
func StartGroup(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, group: true}
	ownGroup(cmd)
	cmd.Cancel = p.end
	return start(p)
}

func start(p *Process) (*Process, error) {
	if err := p.Cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Kill sends SIGKILL: no deferred calls, no rollback. It reports whether it was
// the first.
func (p *Process) Kill() (first bool) {
	first = p.killed.CompareAndSwap(false, true)
	_ = p.end()
	return first
}

// Killed reports whether Kill was called.
func (p *Process) Killed() bool { return p.killed.Load() }

func (p *Process) end() error {
	if p.group {
		return endGroup(p.Cmd)
	}
	return p.Cmd.Process.Kill()
}
