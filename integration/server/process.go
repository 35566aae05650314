//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

// process is a child that dies with us.
type process struct {
	cmd       *exec.Cmd
	done      chan struct{} // closed when it has ended and was waited for
	dismissed bool          // we ended it
	keeper    *keeper       // nil: not frozen
}

// launch starts the command. The kernel sends the parent-death signal when the
// thread that forked ends, which may be long before the process ends. So a
// goroutine keeps that thread until the child has ended.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the result is in its ProcessState
			close(p.done)
		}
	}()
	return p, <-started
}

// String says how the process ended.
func (p *process) String() string {
	if !p.ended() {
		return "running"
	}
	return p.cmd.ProcessState.String()
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// kill ends the process and its descendants at once and returns when they are
// gone.
func (p *process) kill() error {
	if p.ended() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// Stop them first, because a stopped process starts no others.
	all, err := halt(ctx, p.cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, p.cmd.Process.Kill())
	}
	p.dismissed = true
	for _, member := range all {
		if err := member.signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	<-p.done
	if p.keeper != nil {
		p.keeper.dismiss()
		p.keeper = nil
	}
	return awaitGone(ctx, all)
}

// freeze stops the process and its descendants.
func (p *process) freeze() error {
	if p.ended() {
		return errors.New("it does not run: Restart it first")
	}
	if p.keeper != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := halt(ctx, p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	p.keeper, err = hireKeeper(all)
	return err
}

// thaw undoes freeze.
func (p *process) thaw() error {
	if p.keeper == nil {
		return nil
	}
	err := p.keeper.release()
	p.keeper = nil
	return err
}

// keeper is a shell that continues stopped processes when its input ends,
// because we closed it or died. Otherwise a frozen server could not react to
// our death.
type keeper struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

func hireKeeper(all []status) (*keeper, error) {
	args := []string{"-c", `read -r _; kill -s CONT "$@"`, "keeper"}
	for _, member := range all {
		args = append(args, strconv.Itoa(member.pid))
	}
	cmd := exec.Command("sh", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // protects it from Ctrl-C in a terminal
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &keeper{cmd, input}, nil
}

func (k *keeper) release() error {
	if err := k.input.Close(); err != nil {
		return err
	}
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("continue stopped processes: %w", err)
	}
	return nil
}

// dismiss ends the keeper when no process is left to continue.
func (k *keeper) dismiss() {
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// halt stops the process and its descendants and returns all of them.
func halt(ctx context.Context, pid int) ([]status, error) {
	pause := backoff.Backoff{First: time.Millisecond, Limit: 50 * time.Millisecond}
	// Twice, because the first listing may miss processes started while it was
	// read.
	for stopped := 0; ; {
		all, err := family(pid)
		if err != nil {
			return nil, err
		}
		running, err := stopEach(all)
		switch {
		case err != nil:
			return nil, err
		case running:
			stopped = 0
		default:
			stopped++
		}
		if stopped == 2 {
			return all, nil
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return nil, fmt.Errorf("processes %v do not stop: %w", all, err)
		}
	}
}

// stopEach stops the running ones and reports whether there were any. A process
// that has just made another one may wait in the kernel until that runs a
// program. If the new one is stopped, its parent runs no more code of its own.
func stopEach(all []status) (running bool, err error) {
	held := map[int]bool{}
	for _, member := range all {
		if member.stopped() {
			held[member.parent] = true
		}
	}
	for _, member := range all {
		if member.stopped() {
			continue
		}
		running = running || !member.waits() || !held[member.pid]
		if err := member.signal(syscall.SIGSTOP); err != nil {
			return running, err
		}
	}
	return running, nil
}

func awaitGone(ctx context.Context, all []status) error {
	pause := backoff.Backoff{First: time.Millisecond, Limit: 50 * time.Millisecond}
	for _, member := range all {
		for member.lives() {
			if err := backoff.Sleep(ctx, pause.Next()); err != nil {
				return fmt.Errorf("process %d does not end: %w", member.pid, err)
			}
		}
	}
	return nil
}
