package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a worker as the broker sees it.
type process struct {
	command *exec.Cmd
	stdin   io.Closer
	tasks   *json.Encoder
	answers *json.Decoder
}

// startProcess starts a worker, which is killed when ctx ends.
func startProcess(ctx context.Context, command []string, where setup) (*process, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("a worker does not start: %w", err)
	}
	p := &process{command: cmd, stdin: stdin, tasks: json.NewEncoder(stdin), answers: json.NewDecoder(stdout)}
	if err := p.tasks.Encode(where); err != nil {
		p.kill()
		return nil, fmt.Errorf("a worker ended before it was set up: %w", err)
	}
	return p, nil
}

// answerTime is longer than a worker gives itself.
const answerTime = 2 * taskTime

// do gives the worker a task and returns its answer.
func (p *process) do(t task) (a answer, err error) {
	late := time.AfterFunc(answerTime, func() { p.command.Process.Kill() })
	defer late.Stop()
	if err = p.tasks.Encode(t); err == nil {
		err = p.answers.Decode(&a)
	}
	if err != nil {
		return a, fmt.Errorf("a worker ended, or was stuck, with %s: %w", t.Order.ID, err)
	}
	return a, nil
}

// kill is SIGKILL: no deferred call, no rollback, no goodbye. It returns when the process is gone.
func (p *process) kill() {
	p.command.Process.Kill()
	p.command.Wait()
}

// stop lets the worker end by itself.
func (p *process) stop() error {
	p.stdin.Close()
	err := p.command.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("a worker failed: %w", err)
	}
	return err
}
