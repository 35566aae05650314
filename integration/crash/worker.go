//go:build linux

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// task is what a worker, a process of its own, is started for.
type task struct {
	place
	Outside string // the directory that is the other system
	Path    string
	ID      string
	Role    role
	Point   string // where to die
	Lease   time.Duration
	Settle  time.Duration
	Race    race // of one that races
}

// role is what a worker does.
type role string

const (
	walks  role = "walks"  // along its path to the end, and says which points there were
	dies   role = "dies"   // at a point of its path
	serves role = "serves" // does the work of each id that it reads, and says so
	stalls role = "stalls" // in the middle of its work, until it is continued
	races  role = "races"  // with duplicates in this process and in others
)

// What a worker says, one line each.
const (
	diesAt = "dies at "
	passed = "passed " // the points, as JSON
)

const workerLife = time.Minute // a worker whose parent is gone does not stay

// Work does the task that the first argument describes, as JSON, and dies where that says so. It is the whole program
// of package worker.
func Work(args []string, in io.Reader, out io.Writer) error {
	var t task
	if len(args) != 1 {
		return fmt.Errorf("a worker is started by the tests of package crash, with one argument")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), workerLife)
	defer cancel()
	return t.perform(ctx, in, out)
}

func (t task) perform(ctx context.Context, in io.Reader, out io.Writer) error {
	trap := new(trap)
	s, err := t.scene(trap)
	if err != nil {
		return err
	}
	defer s.close()
	switch t.Role {
	case walks, dies:
		return t.walk(ctx, s, out)
	case serves:
		return serve(ctx, s, in, out)
	case stalls:
		return s.stall(ctx, t.Path, in, out)
	case races:
		return s.race(ctx, t.Race, in, out)
	}
	return fmt.Errorf("no such role: %q", t.Role)
}

// walk goes along the path, for some to its end. How that ends is for the parent to check.
func (t task) walk(ctx context.Context, s *scene, out io.Writer) error {
	p, err := pathNamed(t.Path)
	if err != nil {
		return err
	}
	if !p.cold {
		if err := s.warm(ctx); err != nil {
			return fmt.Errorf("before anything: %w", err)
		}
	}
	s.trap.arm(t.Point, out)
	_, _ = s.finish(ctx, p)
	s.trap.disarm()
	if t.Role == dies {
		return nil // it did not come by its point
	}
	points, err := json.Marshal(s.trap.points())
	if err == nil {
		_, err = fmt.Fprintf(out, "%s%s\n", passed, points)
	}
	return err
}

// serve finishes one id after another.
func serve(ctx context.Context, s *scene, in io.Reader, out io.Writer) error {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		s.id = lines.Text()
		answer, err := s.finish(ctx, eachPath)
		if err != nil {
			return fmt.Errorf("%s: %w", s.id, err)
		}
		fmt.Fprintf(out, "%s %s\n", s.id, answer)
	}
	return nil
}

// scene opens the place of the task.
func (t task) scene(trap *trap) (*scene, error) {
	w, err := t.place.open(trap)
	if err != nil {
		return nil, err
	}
	return &scene{world: w, outside: outside{t.Outside}, trap: trap, id: t.ID, lease: t.Lease, settle: t.Settle}, nil
}
