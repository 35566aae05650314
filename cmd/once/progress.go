package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/show"
)

// progress is a line on a terminal that says how far long work has come. Where there is no terminal, or the answer is for
// a program, it says nothing. A nil one says nothing, too.
type progress struct {
	out io.Writer

	mu    sync.Mutex
	next  time.Time // before that, it says nothing more
	width int       // of what is on the line
}

const progressEvery = 100 * time.Millisecond

func newProgress(o outputFlags) *progress {
	if o.json() || !show.IsScreen(os.Stderr) {
		return nil
	}
	return &progress{out: os.Stderr}
}

// isScreen reports whether a file is a terminal whose cursor can be moved.
// say replaces the text on the line.
func (p *progress) say(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Before(p.next) {
		return
	} else {
		p.next = now.Add(progressEvery)
	}
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(p.out, "\r%-*s", p.width, text)
	p.width = len(text)
}

// end clears the line before other output.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width > 0 {
		fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", p.width))
	}
	p.next, p.width = time.Time{}, 0
}

// during shows the elapsed time of work that does not report its progress.
func (p *progress) during(what string, work func() error) error {
	if p == nil {
		return work()
	}
	begun, stop := time.Now(), make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			p.say("%s: %d s", what, int(time.Since(begun).Seconds()))
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	err := work()
	close(stop)
	showing.Wait()
	p.end()
	return err
}
