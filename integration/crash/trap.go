//go:build linux

package crash

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
)

// trap kills the process at a point. A point is a boundary, numbered among
// those of its name, and a side of it: "sql:commit#1/after" is when the
// driver's first COMMIT has returned.
//
// A trap that is not armed does nothing, and neither does a nil one.
type trap struct {
	mu      sync.Mutex
	armed   bool
	at      string // where to die; empty: nowhere, but record all points
	out     io.Writer
	numbers map[string]int
	passed  []string
}

// arm starts counting. The last line of the process goes to out.
func (t *trap) arm(at string, out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed, t.at, t.out = true, at, out
	t.numbers, t.passed = map[string]int{}, nil
}

// disarm stops counting.
func (t *trap) disarm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed, t.at = false, ""
}

// points returns the points that were passed.
func (t *trap) points() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed
}

// reach returns the next boundary of a name, or "" while the trap is not armed.
func (t *trap) reach(name string) (boundary string) {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.armed {
		return ""
	}
	t.numbers[name]++
	return name + "#" + strconv.Itoa(t.numbers[name])
}

// pass does not return at the point to die at: the process kills itself with
// SIGKILL.
func (t *trap) pass(boundary, side string) {
	if boundary == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	point := boundary + "/" + side
	t.passed = append(t.passed, point)
	if point != t.at {
		return
	}
	fmt.Fprintln(t.out, diesAt+point)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way, and the lock stops other goroutines
}

// around passes both sides of a boundary.
func (t *trap) around(name string) (after func()) {
	boundary := t.reach(name)
	t.pass(boundary, "before")
	return func() { t.pass(boundary, "after") }
}
