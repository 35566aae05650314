package history

import (
	"cmp"
	"context"
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

// TestHistories checks that stores do what the model says.
func TestHistories(t *testing.T) {
	seed := proof.Seed(t)
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		first, dsn := e.Migrated(t)
		processes := []*engine.Database{first, e.Connect(t, dsn)}
		tally := map[string]int{}
		rounds, end := 0, time.Now().Add(lasting(t))
		for ; time.Now().Before(end) && !t.Failed(); rounds++ {
			r := oneRound(t, e, processes, seed, rounds)
			for _, events := range r.events {
				if err := check(events); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, rounds, err)
				}
				count(tally, events)
			}
		}
		t.Logf("%s=%d: %d rounds on %d keys each: %v", proof.SeedVar, seed, rounds, keysAtOnce, tally)
		for _, must := range []string{"answered", "refused", "unknown", "Running", "Unknown", "Parked", "Done", "Expired", "forgotten", "taken over"} {
			if tally[must] == 0 && rounds > 20 {
				t.Errorf("no history had anything %s, so nothing was shown of it", must)
			}
		}
	})
}

// oneRound lets clients loose on new keys, and waits until what they began has ended.
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

// count tells what histories had in them: a run that never saw a lease lapse has shown nothing of it.
func count(tally map[string]int, events []event) {
	for _, e := range events {
		tally[e.fate.String()]++
		switch {
		case e.fate != answered || e.verb == extend || e.verb == settle:
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

// hadBefore reports whether the key had another owner at its first attempt before e: then it was forgotten meanwhile.
func hadBefore(events []event, e event) bool {
	for _, other := range events {
		if other.settled < e.called && other.rec.Attempt > 0 && other.rec.Owner != e.rec.Owner {
			return true
		}
	}
	return false
}

// lasting is for how long histories are made on an engine.
func lasting(t *testing.T) time.Duration { return cmp.Or(proof.Soaking(t), shortRun) }
