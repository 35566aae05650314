//go:build linux

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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// event is one line of "go test -json"; see "go doc test2json" and "go help
// buildjson".
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build, with its output
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// trouble is the action of our own event for a failure of the go command.
const trouble = "suite-trouble"

// runAll tests the batches concurrently. It calls note for each event and tick
// every second, one call at a time.
func runAll(ctx context.Context, o *options, batches []*batch, at *room, note func(event), tick func()) {
	var mu sync.Mutex
	alone := func(do func()) {
		mu.Lock()
		defer mu.Unlock()
		do()
	}
	var all sync.WaitGroup
	for _, b := range batches {
		all.Go(func() {
			one := func(e event) { alone(func() { note(e) }) }
			if err := b.run(ctx, o, at, one); err != nil {
				one(event{Action: trouble, Output: err.Error()})
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		all.Wait()
	}()
	seconds := time.NewTicker(time.Second)
	defer seconds.Stop()
	for {
		select {
		case <-over:
			return
		case <-seconds.C:
			alone(tick)
		}
	}
}

func (b *batch) run(ctx context.Context, o *options, at *room, note func(event)) error {
	args, env, err := b.command(o, at)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	// The kernel kills the command when the thread that forked it ends, so that
	// thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Its own process group: keys typed at a terminal are for us, and we end
	// the whole group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	defer close(over)
	go endGroup(ctx, cmd.Process.Pid, over)
	known, err := readEvents(out, note)
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	ended := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(ended, &exit) && known && exit.Exited() {
		ended = nil // tests failed, which the events report
	}
	if err = errors.Join(err, ended); err != nil && ctx.Err() == nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args[:3], " "), err, complaint.String())
	}
	return nil
}

// translated lists SQLite and its C library, which are translated from C. The
// race detector makes them five times as slow and cannot check C memory. The
// driver is still checked.
var translated = []string{"modernc.org/sqlite/lib", "modernc.org/libc"}

// command returns the arguments of the go command.
func (b *batch) command(o *options, at *room) (args, env []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	// lint runs vet.
	args = []string{"test", "-json", "-vet=off", "-timeout", o.timeout.String()}
	// Otherwise each race-enabled program sleeps for a second when it exits.
	env = append(b.env(), "GOTMPDIR="+at.dir, roomVar+"="+at.dir, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if b.apart {
		args = append(args, "-p", "1")
	} else {
		args = append(args, "-p", strconv.Itoa(o.parallel))
	}
	if o.check {
		args = append(args, "-short")
		for _, name := range testenv.Variables() {
			env = append(env, name+"=")
		}
	} else {
		args = append(args, "-count=1", "-exec", self+" "+keeperVerb)
		if o.race(b) {
			args = append(args, "-race")
			for _, pattern := range translated {
				args = append(args, "-gcflags="+pattern+"=-race=false")
			}
		}
	}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	for _, p := range b.packages {
		args = append(args, p.path)
	}
	return args, env, nil
}

// race reports whether a batch runs with the race detector.
func (o *options) race(b *batch) bool { return !o.check && !o.norace && !b.apart }

// patience is how long a signalled process may take to end.
const patience = 20 * time.Second

// endGroup ends a process group when ctx ends.
func endGroup(ctx context.Context, group int, over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-ctx.Done():
	}
	_ = syscall.Kill(-group, syscall.SIGINT)
	select {
	case <-over:
	case <-time.After(patience):
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// readEvents reports whether an event reported a failure. Lines that are not
// events pass through as output.
func readEvents(r io.Reader, note func(event)) (failure bool, err error) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			e := event{}
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)}
			}
			failure = failure || e.Action == "fail" || e.Action == "build-fail"
			note(e)
		}
		if err == io.EOF {
			return failure, nil
		}
		if err != nil {
			return failure, err
		}
	}
}

// serversRun reports whether the servers tool has started everything.
func serversRun() bool { return os.Getenv(testenv.RequireVar) == "1" }
