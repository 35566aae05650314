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

// task is the task of a worker process.
type task struct {
	place
	Outside string // the directory of the other system
	Path    string
	ID      string
	Role    role
	Point   string // where to die
	Lease   time.Duration
	Settle  time.Duration
	Race    race // of a worker that races
}

// role is the kind of a worker.
type role string

const (
	walks  role = "walks"  // follows its path to the end, and prints the points
	dies   role = "dies"   // dies at a point of its path
	serves role = "serves" // does the work of each ID that it reads, and acknowledges it
	stalls role = "stalls" // stalls in the middle of its work, until it is continued
	races  role = "races"  // races with duplicates in this process and in others
)

// The lines that a worker prints.
const (
	diesAt = "dies at "
	passed = "passed " // the points, as JSON
)

const workerLife = time.Minute // a worker does not outlive its parent for longer

// Work does the task that the first argument describes in JSON, and dies where
// it says. It is the whole program of package worker.
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

// walk follows the path, perhaps to its end. The parent checks the result.
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
		return nil // it did not pass its point
	}
	points, err := json.Marshal(s.trap.points())
	if err == nil {
		_, err = fmt.Fprintf(out, "%s%s\n", passed, points)
	}
	return err
}

// serve finishes one ID after another.
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

// scene opens the place of the task and returns its scene.
func (t task) scene(trap *trap) (*scene, error) {
	w, err := t.place.open(trap)
	if err != nil {
		return nil, err
	}
	return &scene{world: w, outside: outside{t.Outside}, trap: trap, id: t.ID, lease: t.Lease, settle: t.Settle}, nil
}
