//go:build linux

package crash

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
)

// target is a point on a path.
type target struct{ path, point string }

// everyPoint kills a worker at each point of each path, or in a short run at
// some of each, and finishes its work. It ends when goOn returns false.
func (a *arena) everyPoint(t *testing.T, ctx context.Context, goOn func() bool) {
	begun := time.Now()
	chance := a.chance("order")
	targets := slices.Clone(a.targets)
	if a.soak == 0 {
		targets = a.some(chance)
	}
	chance.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	var hit atomic.Int64
	a.onLanes(func(l *lane, next func() (int, bool)) {
		for i, ok := next(); ok && goOn() && a.failed.Load() < enoughFailures; i, ok = next() {
			if a.dieAt(t, ctx, l, targets[i]) {
				hit.Add(1)
			}
		}
	}, len(targets))
	if n := int(hit.Load()); n != len(targets) && goOn() {
		t.Errorf("%d of %d points were hit", n, len(targets))
	}
	t.Logf("%d of %d points hit, of %d that there are, in %v", hit.Load(), len(targets), len(a.targets), time.Since(begun).Round(time.Millisecond))
}

// some returns points of each path, at equal distances.
func (a *arena) some(chance *rand.Rand) (targets []target) {
	for from := 0; from < len(a.targets); {
		to := from
		for to < len(a.targets) && a.targets[to].path == a.targets[from].path {
			to++
		}
		for i := from + chance.IntN(min(oneIn, to-from)); i < to; i += oneIn {
			targets = append(targets, a.targets[i])
		}
		from = to
	}
	return targets
}

// discover follows each path without killing, and returns its points.
func (a *arena) discover(t *testing.T, ctx context.Context) {
	begun := time.Now()
	all := paths()
	found := make([][]target, len(all))
	a.onLanes(func(l *lane, next func() (int, bool)) {
		for i, ok := next(); ok; i, ok = next() {
			for _, point := range a.walk(t, ctx, l, all[i]) {
				found[i] = append(found[i], target{all[i].name, point})
			}
		}
	}, len(all))
	for i, some := range found {
		if len(some) == 0 {
			t.Errorf("%s has no points", all[i].name)
		}
		t.Logf("%-16s %3d points", all[i].name, len(some))
		a.targets = append(a.targets, some...)
	}
	t.Logf("%d points, found in %v", len(a.targets), time.Since(begun).Round(time.Millisecond))
}

// walk lets a worker follow a path to its end.
func (a *arena) walk(t *testing.T, ctx context.Context, l *lane, p path) (points []string) {
	s, k, err := a.begin(ctx, l, p)
	defer a.done(l, k)
	if err != nil {
		t.Errorf("%s/%s: %v", a.engine, p.name, err)
		return nil
	}
	k.Role, k.Lease = walks, longLease // nothing waits for it to lapse, and nothing comes in between
	out, state := a.start(t, ctx, k)
	text, ok := strings.CutPrefix(strings.TrimSpace(out), passed)
	if err := json.Unmarshal([]byte(text), &points); !ok || err != nil {
		t.Errorf("%s/%s: the worker ended with %v and said %q (%v)", a.engine, p.name, state, out, err)
	}
	a.finish(t, ctx, s, p, "undisturbed")
	return points
}

const (
	tries = 6

	enoughFailures = 10 // each may take long, and more of them show nothing new
)

// dieAt kills a worker at a point, and finishes its work. A worker may take
// another way and not pass its point: then the next one is sent.
func (a *arena) dieAt(t *testing.T, ctx context.Context, l *lane, at target) (hit bool) {
	p, err := pathNamed(at.path)
	if err != nil {
		t.Error(err)
		return false
	}
	for range tries {
		if hit = a.cycle(t, ctx, l, p, at.point); hit || ctx.Err() != nil {
			return hit
		}
	}
	t.Errorf("%s/%s: no worker has come by %s", a.engine, at.path, at.point)
	return false
}

// cycle is one unit of work: several workers die one after another, each at its
// point, and one finishes. It reports whether the first of them passed its
// point. The later ones may find nothing left to do.
func (a *arena) cycle(t *testing.T, ctx context.Context, l *lane, p path, points ...string) (hit bool) {
	ctx, cancel := context.WithTimeout(ctx, proof.Patience)
	defer cancel()
	s, k, err := a.begin(ctx, l, p)
	defer a.done(l, k)
	if err != nil {
		t.Errorf("%s/%s: %v", a.engine, p.name, err)
		return false
	}
	for i, point := range points {
		died := a.die(t, ctx, k, point)
		hit = hit || died && i == 0
	}
	a.finish(t, ctx, s, p, strings.Join(points, ", "))
	return hit
}

// die starts a worker that dies at a point, if it passes it.
func (a *arena) die(t *testing.T, ctx context.Context, k task, point string) bool {
	k.Role, k.Point = dies, point
	out, state := a.start(t, ctx, k)
	hit := strings.TrimSpace(out) == diesAt+point && state.Signaled() && state.Signal() == syscall.SIGKILL
	if hit {
		a.cycles.Add(1)
	} else if state.ExitStatus() != 0 {
		t.Errorf("%s/%s: sent to die at %s, the worker ended with %v and said %q", a.engine, k.Path, point, state, out)
	}
	return hit
}

// relays are units of work in which several workers die one after another, at
// random points.
func (a *arena) relays(t *testing.T, ctx context.Context) {
	const maxDeaths = 3
	units := 60
	if a.soak == 0 {
		units = 20
	}
	chance := a.chance("relays")
	onPath := map[string][]string{}
	for _, at := range a.targets {
		onPath[at.path] = append(onPath[at.path], at.point)
	}
	type draw struct {
		path   path
		points []string
	}
	draws := make([]draw, units)
	all := paths()
	for i := range draws {
		p := all[chance.IntN(len(all))]
		draws[i].path = p
		for range 2 + chance.IntN(maxDeaths-1) {
			draws[i].points = append(draws[i].points, onPath[p.name][chance.IntN(len(onPath[p.name]))])
		}
	}
	a.onLanes(func(l *lane, next func() (int, bool)) {
		for i, ok := next(); ok && ctx.Err() == nil && a.failed.Load() < enoughFailures; i, ok = next() {
			a.cycle(t, ctx, l, draws[i].path, draws[i].points...)
		}
	}, units)
}

// finish finishes the work in this process, and counts its effects.
func (a *arena) finish(t *testing.T, ctx context.Context, s *scene, p path, points string) {
	// Its own time limit: earlier delays must not keep the effects from being
	// counted.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), proof.Patience)
	defer cancel()
	begun := time.Now()
	answer, err := s.finish(ctx, p)
	took := time.Since(begun).Round(time.Millisecond)
	err = p.check(ctx, s, answer, err)
	a.judge(err)
	if err != nil {
		t.Errorf("%s/%s/%s: %s, finished in %v: %v", a.engine, p.name, points, s.id, took, err)
	}
}
