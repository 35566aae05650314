package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
)

// peers is the process that runs other libraries. They have their own module
// and process, so that their requirements, such as the version of a driver, do
// not affect ours. The process is idle while other variants run.
type peers struct {
	dir     string // of the program
	cmd     *exec.Cmd
	send    *json.Encoder
	input   io.Closer
	replies *bufio.Scanner
}

// startPeers builds and starts the process. If that fails, it adds a note and
// returns nil, which opens no peers.
func startPeers(ctx context.Context, module string, r *report) *peers {
	p := new(peers)
	if err := p.start(ctx, module); err != nil {
		r.note("the other libraries are left out: %v", err)
		p.stop()
		return nil
	}
	return p
}

func (p *peers) start(ctx context.Context, module string) (err error) {
	if p.dir, err = os.MkdirTemp("", "once-bench"); err != nil {
		return err
	}
	program := filepath.Join(p.dir, "peers")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir = module
	build.Env = append(os.Environ(), "GOWORK=off")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build in %s: %w\n%s", module, err, bytes.TrimSpace(text))
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.send, p.input, p.replies = json.NewEncoder(input), input, bufio.NewScanner(output)
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	return nil
}

// stop ends the process by closing its input.
func (p *peers) stop() {
	if p == nil {
		return
	}
	if p.cmd != nil {
		_ = p.input.Close()
		_ = p.cmd.Wait()
	}
	_ = os.RemoveAll(p.dir)
}

// open prepares the peers in a database and returns those for a scenario.
func (p *peers) open(ctx context.Context, dsn, scenario string, r *report) []variant {
	return p.openFor(turn.Request{DSN: dsn}, scenario, r)
}

// openInMemory is open for peers without a database.
func (p *peers) openInMemory(scenario string, r *report) []variant {
	return p.openFor(turn.Request{InMemory: true}, scenario, r)
}

func (p *peers) openFor(q turn.Request, scenario string, r *report) (variants []variant) {
	if p == nil {
		return nil
	}
	reply, err := p.ask(q)
	if err != nil {
		r.note("the other libraries are left out here: %v", err)
		return nil
	}
	for _, peer := range reply.Peers {
		if peer.Scenario == scenario {
			variants = append(variants, variant{peer.Name, p.turn(peer.Name)})
		}
	}
	return variants
}

// close releases the database of the peers.
func (p *peers) close(r *report) {
	if p == nil {
		return
	}
	if _, err := p.ask(turn.Request{}); err != nil {
		r.note("the other libraries could not be closed: %v", err)
	}
}

func (p *peers) turn(peer string) func(context.Context, int, time.Duration) (turn.Tally, error) {
	return func(_ context.Context, workers int, length time.Duration) (turn.Tally, error) {
		reply, err := p.ask(turn.Request{Peer: peer, Workers: workers, Length: length})
		return reply.Tally, err
	}
}

func (p *peers) ask(q turn.Request) (reply turn.Reply, err error) {
	if err := p.send.Encode(q); err != nil {
		return reply, err
	}
	if !p.replies.Scan() {
		return reply, errors.Join(errors.New("the process of the peers has ended"), p.replies.Err())
	}
	if err := json.Unmarshal(p.replies.Bytes(), &reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		return reply, errors.New(reply.Error)
	}
	return reply, nil
}
