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
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/storetest"
)

const (
	clients, keysAtOnce, steps = 5, 3, 14
	shortRun                   = 4 * time.Second
)

// TestHistories checks that stores behave like the model.
func TestHistories(t *testing.T) {
	seed := proof.Seed(t)
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		first, dsn := e.Migrated(t)
		processes := []*engine.Database{first, e.Connect(t, dsn)}
		tally, decided := map[string]int{}, &decisions{}
		rounds, end := 0, time.Now().Add(lasting(t))
		for ; time.Now().Before(end) && !t.Failed(); rounds++ {
			r := oneRound(t, e, processes, seed, rounds)
			for _, events := range r.events {
				if err := decided.count(check(events)); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, rounds, err)
				}
				count(tally, events)
			}
		}
		decided.report(t)
		t.Logf("%s=%d: %d rounds on %d keys each: %v", proof.SeedVar, seed, rounds, keysAtOnce, tally)
		for _, must := range []string{"answered", "refused", "unknown", "Running", "Unknown", "Parked", "Done", "Expired", "forgotten", "taken over"} {
			if tally[must] == 0 && rounds > 20 {
				t.Errorf("no history had anything %s, so nothing was shown of it", must)
			}
		}
	})
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
func oneRound(t *testing.T, e engine.Engine, processes []*engine.Database, seed uint64, round int) *recorder {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := newRecorder()
	var keys []once.Key
	for i := range keysAtOnce {
		keys = append(keys, once.Key{Scope: t.Name(), Operation: "history", ID: fmt.Sprintf("%d-%d-%d", seed, round, i)})
	}
	var wg sync.WaitGroup
	for id := range clients {
		database := processes[id%len(processes)]
		c := &client{recorder: r, id: id, chance: rand.New(rand.NewPCG(seed, uint64(round*clients+id))), begin: database.Begin, keys: keys,
			sqlite: e.Name == engine.SQLite}
		faulty := storetest.FaultyTx(database.Store, c.plan)
		c.store = faulty
		wg.Go(func() {
			defer faulty.Wait()
			for range steps {
				if err := c.step(ctx); err != nil {
					t.Errorf("%s=%d, round %d, client %d: %v", proof.SeedVar, seed, round, id, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return r
}

// count counts what happened in histories: a run in which no lease lapsed has
// tested nothing about it.
func count(tally map[string]int, events []event) {
	for _, e := range events {
		tally[e.result.String()]++
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
