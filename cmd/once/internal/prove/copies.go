package prove

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/trial"
)

const (
	mostFailedStarts = 5                    // in a row, before the proof gives up
	lookEvery        = 5 * time.Millisecond // whether a copy listens
	outputEnd        = 2 << 10              // bytes of a copy's output that an error quotes
	pipeTime         = time.Second          // how long the output of a dead copy may stay open
)

// copies runs the copies of the program, and starts each again when it ends.
type copies struct {
	options Options
	words   map[string]string // placeholders that all copies share

	mu      sync.Mutex
	changed *sync.Cond
	ready   []*programCopy
	turn    int
	killed  int
	ended   int // by themselves, after they listened
	started map[int]bool
}

// programCopy is a running copy that listens.
type programCopy struct {
	*trial.Process
	service string // URL
}

func newCopies(o Options, words map[string]string) *copies {
	c := &copies{options: o, words: words, started: map[int]bool{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// keep runs a copy until ctx ends.
func (c *copies) keep(ctx context.Context, number int) error {
	failed := 0
	for ctx.Err() == nil {
		p, ended, err := c.start(ctx, number)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errEnded):
			if failed++; failed >= mostFailedStarts {
				return fmt.Errorf("the program ended %d times in a row %w", failed, err)
			}
			continue
		case err != nil:
			return err
		}
		failed = 0
		c.enter(p)
		<-ended
		c.leave(ctx, p)
	}
	return nil
}

// errEnded reports that a copy ended before it listened.
var errEnded = errors.New("before it listened")

// start starts a copy and waits until it listens. It closes ended when the process
// and its output have ended.
func (c *copies) start(ctx context.Context, number int) (_ *programCopy, ended chan struct{}, err error) {
	words, service, err := c.wordsOf(number)
	if err != nil {
		return nil, nil, err
	}
	at := hostPort(service)
	if err := c.free(ctx, number, at); err != nil {
		return nil, nil, err
	}
	args := make([]string, len(c.options.Command))
	for i, arg := range c.options.Command {
		args[i] = fill(arg, words)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = os.Environ()
	for _, e := range c.options.Environment {
		cmd.Env = append(cmd.Env, fill(e, words))
	}
	said := &tail{also: c.options.Output}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, pipeTime
	process, err := trial.StartGroup(cmd)
	if err != nil {
		return nil, nil, fmt.Errorf("the program cannot be started: %w", err)
	}
	ended = make(chan struct{})
	go func() {
		_ = process.Wait()
		_ = process.Cancel() // what is left of its group
		close(ended)
	}()
	limit := time.NewTimer(c.options.Patience)
	defer limit.Stop()
	for !reaches(at) {
		select {
		case <-ended:
			return nil, nil, fmt.Errorf("%w at %s: %v%s", errEnded, at, process.ProcessState, said)
		case <-limit.C:
			process.Kill()
			<-ended
			return nil, nil, fmt.Errorf("the program did not listen at %s within %v: give it its address with {{listen}} or {{port}}, or name it with --service%s", at, c.options.Patience, said)
		case <-time.After(lookEvery):
		}
	}
	return &programCopy{Process: process, service: service}, ended, nil
}

// free waits until what is left of the copy has stopped listening. Before its first
// start it does not wait: then it is another program.
func (c *copies) free(ctx context.Context, number int, at string) error {
	c.mu.Lock()
	started := c.started[number]
	c.started[number] = true
	c.mu.Unlock()
	for begun := time.Now(); reaches(at); trial.Pause(ctx, lookEvery) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !started || time.Since(begun) > c.options.Patience:
			return fmt.Errorf("something listens at %s already, and the proof would ask it instead of the program: stop it", at)
		}
	}
	return nil
}

// wordsOf returns the placeholders of a copy, and the URL of its service. It listens
// on a port that was free a moment ago.
func (c *copies) wordsOf(number int) (words map[string]string, service string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	defer listener.Close()
	words = map[string]string{"copy": fmt.Sprint(number), "listen": listener.Addr().String(),
		"port": fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)}
	for name, value := range c.words {
		words[name] = value
	}
	return words, fill(c.options.Service, words), nil
}

// hostPort returns the address of a URL.
func hostPort(service string) string {
	u, err := url.Parse(service)
	switch {
	case err != nil:
		return service
	case u.Port() == "" && u.Scheme == "https":
		return net.JoinHostPort(u.Hostname(), "443")
	case u.Port() == "":
		return net.JoinHostPort(u.Hostname(), "80")
	}
	return u.Host
}

func reaches(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	return conn.LocalAddr().String() != conn.RemoteAddr().String() // TCP can connect a free port to itself
}

func (c *copies) enter(p *programCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = append(c.ready, p)
	c.changed.Broadcast()
}

func (c *copies) leave(ctx context.Context, p *programCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(p)
	if !p.Killed() && ctx.Err() == nil {
		c.ended++
	}
}

func (c *copies) remove(p *programCopy) {
	for i, other := range c.ready {
		if other == p {
			c.ready = append(c.ready[:i:i], c.ready[i+1:]...)
			return
		}
	}
}

// next returns the copy whose turn it is, and waits while none listens.
func (c *copies) next(ctx context.Context) (*programCopy, error) {
	defer context.AfterFunc(ctx, c.wake)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.ready) == 0 && ctx.Err() == nil {
		c.changed.Wait()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c.turn++
	return c.ready[c.turn%len(c.ready)], nil
}

func (c *copies) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// kill kills a copy that listens, and waits while there is none.
func (c *copies) kill(ctx context.Context) error {
	for {
		p, err := c.next(ctx)
		if err != nil {
			return err
		}
		c.mu.Lock()
		first := p.Kill()
		if first {
			c.killed++
			c.remove(p)
		}
		c.mu.Unlock()
		if first {
			return nil
		}
	}
}

// tail keeps the end of what a copy writes.
type tail struct {
	also io.Writer

	mu   sync.Mutex
	last []byte
}

// Write implements io.Writer.
func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, data...)
	if over := len(t.last) - outputEnd; over > 0 {
		t.last = append([]byte(nil), t.last[over:]...)
	}
	if t.also != nil {
		return t.also.Write(data)
	}
	return len(data), nil
}

// String returns the end of the output, for an error.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(bytes.TrimSpace(t.last))
	if text == "" {
		return ". It wrote nothing"
	}
	return ". It wrote:\n" + text
}

// fill replaces placeholders.
func fill(text string, words map[string]string) string {
	var pairs []string
	for name, value := range words {
		pairs = append(pairs, "{{"+name+"}}", value)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
