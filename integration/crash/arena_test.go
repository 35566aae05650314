//go:build linux

package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// tally counts the results on an engine.
type tally struct {
	cycles     atomic.Int64 // workers that were killed, and whose work another one finished
	units      atomic.Int64 // units of work that were finished and counted
	duplicates atomic.Int64 // excess effects
	losses     atomic.Int64 // missing effects
	unchecked  atomic.Int64 // units of work without a result: they did not end in time, or could not be checked
	failed     atomic.Int64 // units of work with a wrong end, including all of these
}

func (y *tally) String() string {
	return fmt.Sprintf("%5d crash cycles, %5d units of work, %d duplicates, %d losses, %d not checked",
		y.cycles.Load(), y.units.Load(), y.duplicates.Load(), y.losses.Load(), y.unchecked.Load())
}

// judge counts a unit of work by the error of its check.
func (y *tally) judge(err error) {
	y.units.Add(1)
	if err != nil {
		y.failed.Add(1)
	}
	var m miscount
	counted := errors.As(err, &m)
	var u unchecked
	switch {
	case counted && len(m.got) > m.n:
		y.duplicates.Add(1)
	case errors.As(err, &u) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		y.unchecked.Add(1)
	case counted:
		y.losses.Add(1)
	}
}

// arena is an engine, with lanes on which workers run and die in parallel.
type arena struct {
	*run
	tally
	engine  string
	lanes   []*lane
	ids     atomic.Int64
	targets []target // all points
	round   int
	whole   bool // a round is complete
}

// chance returns random numbers, separate for each use.
func (a *arena) chance(use string) *rand.Rand {
	var stream uint64
	for _, b := range []byte(fmt.Sprint(a.engine, a.round, use)) {
		stream = stream*31 + uint64(b)
	}
	return rand.New(rand.NewPCG(a.seed, stream))
}

// lane is a place with the worlds of the parent, one for each prefix of tables.
type lane struct {
	place
	outside string
	worlds  map[string]world
}

func newArena(t *testing.T, ctx context.Context, r *run, engine string) *arena {
	a := &arena{run: r, engine: engine}
	for _, p := range places(t, engine, lanesOn[engine]) {
		l := &lane{place: p, outside: t.TempDir(), worlds: map[string]world{}}
		a.lanes = append(a.lanes, l)
		t.Cleanup(l.close)
		if engine == SQLite || len(a.lanes) == 1 {
			l.setUp(t, ctx)
		}
	}
	return a
}

// setUp creates the tables that paths share.
func (l *lane) setUp(t *testing.T, ctx context.Context) {
	w, err := l.world("")
	if err == nil {
		err = w.setUp(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lane) world(prefix string) (world, error) {
	if w := l.worlds[prefix]; w != nil {
		return w, nil
	}
	p := l.place
	p.Prefix = prefix
	w, err := p.open(nil)
	if err == nil {
		l.worlds[prefix] = w
	}
	return w, err
}

func (l *lane) close() {
	for _, w := range l.worlds {
		w.close()
	}
}

// forgetWorld closes a world that is no longer needed.
func (l *lane) forgetWorld(prefix string) {
	if w := l.worlds[prefix]; w != nil {
		w.close()
		delete(l.worlds, prefix)
	}
}

// onLanes runs n tasks, those of each lane one after another.
func (a *arena) onLanes(work func(l *lane, next func() (int, bool)), n int) {
	var taken atomic.Int64
	next := func() (int, bool) {
		i := int(taken.Add(1)) - 1
		return i, i < n
	}
	var wg sync.WaitGroup
	for _, l := range a.lanes {
		wg.Go(func() { work(l, next) })
	}
	wg.Wait()
}

// begin returns a new unit of work on a path, with what earlier attempts have
// left.
func (a *arena) begin(ctx context.Context, l *lane, p path) (*scene, task, error) {
	k := task{place: l.place, Outside: l.outside, Path: p.name, ID: fmt.Sprintf("u%d", a.ids.Add(1)), Lease: shortLease}
	if p.prefix != nil {
		k.Prefix = p.prefix(k.ID)
	}
	w, err := l.world(k.Prefix)
	if err != nil {
		return nil, k, err
	}
	s := &scene{world: w, outside: outside{l.outside}, id: k.ID, lease: longLease}
	if p.stage != nil {
		err = p.stage(ctx, s)
	}
	return s, k, err
}

// done releases what a unit of work had for itself.
func (a *arena) done(l *lane, k task) {
	if k.Prefix != "" {
		l.forgetWorld(k.Prefix)
	}
}

// start runs a worker, and returns its output.
func (a *arena) start(t *testing.T, ctx context.Context, k task) (out string, state syscall.WaitStatus) {
	var said, complained strings.Builder
	cmd := a.command(t, ctx, k)
	cmd.Stdout, cmd.Stderr = &said, &complained
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Errorf("start a worker: %v", err)
		return "", state
	}
	state = cmd.ProcessState.Sys().(syscall.WaitStatus)
	if complained.Len() > 0 {
		t.Errorf("%s/%s: %s", a.engine, k.Path, complained.String())
	}
	return said.String(), state
}
