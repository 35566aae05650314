//go:build linux

package crash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
)

const (
	// enoughCycles is how many cycles there must be in all, if all engines run: in
	// a soak, and in a short run.
	enoughCycles, enoughInShort = 2000, 1000
	// oneIn is how many points of a path a short run has for each at which a
	// worker dies. It begins at a random one, so that another run has other
	// points.
	oneIn = 5

	// shortLease is the lease of workers that are killed: another call waits until
	// it lapses. It must be longer than a busy machine needs from a claim to the
	// end.
	shortLease = 300 * time.Millisecond
	longLease  = 10 * time.Second // of the process that finishes the work
	// sharedLease is the lease of workers that have the same work at once. One of
	// them may be so slow that its effect comes after its lease, but not later
	// than another such time.
	sharedLease = time.Second
)

// lanesOn is the number of lanes of an engine. MariaDB has the most points, and
// waits the most.
var lanesOn = map[string]int{SQLite: 8, Postgres: 8, PGStore: 8, Parts: 8, MariaDB: 12}

// TestCrash kills workers on each path, and at random moments, on all engines
// in parallel: in a soak at each point, and else at one in oneIn.
func TestCrash(t *testing.T) {
	run := newRun(t)
	var all sync.WaitGroup // not t.Parallel, which runs no more at once than there are processors
	for engine := range lanesOn {
		all.Go(func() {
			t.Run(engine, func(t *testing.T) { run.onEngine(t, engine) })
		})
	}
	all.Wait()
	run.report(t)
}

// run is shared by the engines.
type run struct {
	worker string // the path of its program
	seed   uint64
	soak   time.Duration

	mu     sync.Mutex
	arenas []*arena
}

func newRun(t *testing.T) *run {
	r := &run{worker: filepath.Join(t.TempDir(), "worker"), seed: proof.Seed(t), soak: proof.Soaking(t)}
	// Without the race detector: a worker is short-lived, and mostly starts.
	build := exec.Command("go", "build", "-trimpath", "-o", r.worker, "./worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release, which has compiled most of it
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	return r
}

// onEngine runs everything once, and again until the time is over.
func (r *run) onEngine(t *testing.T, engine string) {
	end := time.Now().Add(r.soak)
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(10*time.Minute))
	defer cancel()
	a := newArena(t, ctx, r, engine)
	defer r.count(a)
	a.discover(t, ctx)
	a.goThrough(t, ctx, func() bool { return ctx.Err() == nil })
	for time.Now().Before(end) && !t.Failed() {
		a.round++
		t.Run(fmt.Sprintf("round %d", a.round), func(t *testing.T) {
			a.goThrough(t, ctx, func() bool { return time.Now().Before(end) && !t.Failed() })
		})
	}
}

func (a *arena) goThrough(t *testing.T, ctx context.Context, goOn func() bool) {
	t.Run("moments", func(t *testing.T) { a.anyMoment(t, ctx) })
	t.Run("stalls", func(t *testing.T) { a.everyStall(t, ctx) })
	t.Run("duplicates", func(t *testing.T) { a.everyRace(t, ctx) })
	if starters[a.engine] != nil {
		t.Run("server", func(t *testing.T) { a.serverDies(t, ctx) })
	}
	t.Run("relays", func(t *testing.T) { a.relays(t, ctx) })
	t.Run("points", func(t *testing.T) {
		a.everyPoint(t, ctx, goOn)
		a.whole = true
	})
}

// count adds the tally of an engine that is done.
func (r *run) count(a *arena) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arenas = append(r.arenas, a)
}

// report logs the tallies, and fails if there were too few cycles.
func (r *run) report(t *testing.T) {
	cycles, whole := int64(0), 0
	for _, a := range r.arenas {
		t.Logf("%-16s %v", a.engine, &a.tally)
		cycles += a.cycles.Load()
		if a.whole {
			whole++
		}
	}
	t.Logf("%-16s %5d crash cycles (%s=%d)", "all engines", cycles, proof.SeedVar, r.seed)
	enough := int64(enoughInShort)
	if r.soak > 0 {
		enough = enoughCycles
	}
	if whole == len(lanesOn) && cycles < enough {
		t.Errorf("only %d crash cycles, %d are wanted", cycles, enough)
	}
}
