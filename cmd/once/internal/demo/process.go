package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/effectively-once/once/cmd/once/internal/trial"
)

// process is a process of a shop, as the demo sees it.
type process struct {
	*trial.Process
	stdin   io.Closer
	lines   *json.Decoder
	url     string     // takes orders
	mu      sync.Mutex // guards answers
	answers *json.Encoder
}

// startProcess starts a process and waits until it serves. It is killed when
// ctx ends.
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
	started, err := trial.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("a worker did not start: %w", err)
	}
	p := &process{Process: started, stdin: stdin, answers: json.NewEncoder(stdin), lines: json.NewDecoder(stdout)}
	var at ready
	if err = p.answers.Encode(where); err == nil {
		err = p.lines.Decode(&at)
	}
	if err != nil {
		p.Kill()
		_ = p.Wait()
		return nil, fmt.Errorf("a worker ended before it served, see its output above: %w", err)
	}
	p.url = at.URL
	return p, nil
}

// answer is lost if the process is dead.
func (p *process) answer(a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.answers.Encode(a)
}

// stop lets the process end by itself.
func (p *process) stop() { _ = p.stdin.Close() }
