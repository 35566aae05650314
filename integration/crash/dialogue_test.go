//go:build linux

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// partner is a worker that the test exchanges lines with.
type partner struct {
	t          *testing.T
	cmd        *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Scanner
	complained strings.Builder
}

func (a *arena) talk(t *testing.T, ctx context.Context, k task) *partner {
	t.Helper()
	p := &partner{t: t, cmd: a.command(t, ctx, k)}
	p.cmd.Stderr = &p.complained
	p.in, _ = p.cmd.StdinPipe()
	out, _ := p.cmd.StdoutPipe()
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// tell writes a line to the worker.
func (p *partner) tell(line string) {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Errorf("the worker does not listen: %v", err)
	}
}

// hear reads a line of the worker.
func (p *partner) hear() string {
	if !p.out.Scan() {
		p.t.Errorf("the worker says nothing more: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *partner) hearEnding() (e ending) {
	if line := p.hear(); !p.t.Failed() {
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Errorf("the worker says %q: %v", line, err)
		}
	}
	return e
}

// leave waits until the worker ends, which must succeed.
func (p *partner) leave() {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil || p.complained.Len() > 0 {
		p.t.Errorf("the worker ended with %v: %s", err, p.complained.String())
	}
}

// awaitStopped waits until the worker is stopped by a signal.
func (p *partner) awaitStopped(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		// The state follows the name, which is in brackets and may contain anything.
		_, fields, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
		switch fields[0] {
		case 'T':
			return nil
		case 'Z', 'X':
			return fmt.Errorf("it has ended: %s", p.complained.String())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
