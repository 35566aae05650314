package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/logtest"
)

func TestMain(m *testing.M) { logtest.Main(m) }

const (
	clients, keysAtOnce, steps = 5, 3, 14
	shortRun                   = 4 * time.Second
)

// TestHistories checks that stores behave like the model.
func TestHistories(t *testing.T) {
	seed := proof.Seed(t)
	onEach(t, func(t *testing.T, p *place) {
		tally, decided := map[string]int{}, &decisions{}
		var mu sync.Mutex
		rounds := inRounds(t, p, func(round int) error {
			r, err := oneRound(t, p, seed, round)
			if err != nil {
				return fmt.Errorf("%s=%d, round %d: %w", proof.SeedVar, seed, round, err)
			}
			if by := r.wasSet(); by.Abs() > tolerance*time.Microsecond/2 {
				t.Logf("round %d shows nothing: this machine's clock was set by %v meanwhile", round, by)
				return nil
			}
			for _, events := range r.events {
				err := check(events)
				mu.Lock()
				if err := decided.count(err); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, round, err)
				}
				count(tally, events)
				mu.Unlock()
			}
			return nil
		})
		decided.report(t)
		t.Logf("%s=%d: %d rounds on %d keys each: %v", proof.SeedVar, seed, rounds, keysAtOnce, tally)
		needed := []string{"answered", "refused", "unknown", "Running", "Unknown", "Parked", "Done", "Expired", "forgotten", "taken over"}
		if p.collects && rounds > 60 { // they are rarer
			needed = append(needed, "firm answered", "firm failed", "firm unknown", "speculative answered", "speculative unknown")
		}
		for _, must := range needed {
			if tally[must] == 0 && (rounds > 20 || must == "answered") {
				t.Errorf("no history had anything %s, so nothing was shown of it", must)
			}
		}
	})
}

// inRounds runs rounds, as many at once as is good in a place, until the test has
// lasted long enough. It returns how many there were.
func inRounds(t *testing.T, p *place, round func(int) error) (rounds int) {
	t.Helper()
	for end := time.Now().Add(lasting(t)); time.Now().Before(end) && !t.Failed(); rounds += p.beside {
		var running sync.WaitGroup
		for n := range p.beside {
			running.Go(func() {
				if err := round(rounds + n); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
	}
	return rounds
}

// decisions counts the histories that were checked, and apart from them those that
// could not be decided in time.
type decisions struct{ made, missing int }

// count returns why a history is wrong, or nil.
func (d *decisions) count(err error) error {
	if errors.Is(err, errUndecided) {
		d.missing++
		return nil
	}
	d.made++
	return err
}

// report fails the test if a history could not be decided: that is no violation,
// and no pass.
func (d *decisions) report(t *testing.T) {
	t.Helper()
	if d.missing > 0 {
		t.Errorf("%d of %d histories could not be decided within %v, so nothing is known of them", d.missing, d.made+d.missing, checkTime)
	}
}

func TestAnUndecidedHistoryIsNeitherRightNorWrong(t *testing.T) {
	wrong := errors.New("wrong")
	var d decisions
	for _, test := range []struct{ is, want error }{{nil, nil}, {wrong, wrong}, {fmt.Errorf("%w: long", errUndecided), nil}} {
		if err := d.count(test.is); err != test.want {
			t.Errorf("%v counts as %v", test.is, err)
		}
	}
	if d != (decisions{made: 2, missing: 1}) {
		t.Errorf("counted %+v", d)
	}
}

// oneRound runs clients on new keys, and waits until all their calls have
// ended.
func oneRound(t *testing.T, p *place, seed uint64, round int) (*recorder, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	processes, end, err := p.processes(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer end()
	r := newRecorder()
	var keys []once.Key
	for i := range keysAtOnce {
		keys = append(keys, once.Key{Scope: t.Name(), Operation: "history", ID: fmt.Sprintf("%d-%d-%d", seed, round, i)})
	}
	disturb(processes, seed, round)
	errs := make([]error, clients)
	var calling sync.WaitGroup
	for id := range clients {
		c := &client{recorder: r, id: id, chance: rand.New(rand.NewPCG(seed, uint64(round*clients+id))), keys: keys,
			process: processes[id%len(processes)]}
		with, ended := c.faulty(c.plan)
		c.process = with
		calling.Go(func() {
			defer ended()
			for range steps {
				if err := c.step(ctx); err != nil {
					errs[id] = fmt.Errorf("client %d: %w", id, err)
					return
				}
			}
		})
	}
	calling.Wait()
	calm(processes)
	return r, errors.Join(errs...)
}

// count counts what happened in histories: a run in which no lease lapsed has
// tested nothing about it.
func count(tally map[string]int, events []event) {
	for _, e := range events {
		tally[e.result.String()]++
		if e.firm && e.entry.at > 0 {
			tally["firm "+e.result.String()]++
		}
		if e.req.Speculative && !e.firm {
			tally["speculative "+e.result.String()]++
		}
		switch {
		case e.result != answered || e.verb == extend || e.verb == settle:
		case e.inFlight():
			tally["in flight"]++
		case e.rec.Status == once.Absent && e.rec.Attempt > 0:
			tally["released"]++
		default:
			name := e.rec.Status.String()
			tally[string(name[0]-'a'+'A')+name[1:]]++
			if e.rec.Owner == e.req.Owner && e.rec.Attempt > 1 {
				tally["taken over"]++
			}
			if e.rec.Attempt == 1 && e.settled-e.called < never/2 && hadBefore(events, e) {
				tally["forgotten"]++
			}
		}
	}
}

// hadBefore reports whether the key had another owner before e. Then it was
// forgotten meanwhile.
func hadBefore(events []event, e event) bool {
	for _, other := range events {
		if other.settled < e.called && other.rec.Attempt > 0 && other.rec.Owner != e.rec.Owner {
			return true
		}
	}
	return false
}

// lasting returns how long the test runs on an engine.
func lasting(t *testing.T) time.Duration { return cmp.Or(proof.Soaking(t), shortRun) }
