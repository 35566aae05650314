package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/storetest"
)

// TestFirstAnswers checks that all calls of Do, DoTx and InTx on a key return
// the answer of one of them, whose effect exists exactly once, although
// requests and replies are lost, commits fail, and transactions are rolled
// back.
func TestFirstAnswers(t *testing.T) {
	seed := proof.Seed(t)
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		first, dsn := e.Migrated(t)
		first.MustExec(t, effectTable)
		processes := []*engine.Database{first, e.Connect(t, dsn), e.Connect(t, dsn)}
		tally, decided := map[string]int{}, &decisions{}
		rounds, end := 0, time.Now().Add(lasting(t))
		for ; time.Now().Before(end) && !t.Failed(); rounds++ {
			b := workRound(t, processes, seed, rounds)
			for k, attempts := range b.attempts {
				if err := decided.count(checkAnswers(attempts)); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, rounds, err)
				}
				checkEffects(t, first, k, attempts)
				for _, a := range attempts {
					tally[a.result.String()+" "+a.how]++
				}
			}
		}
		decided.report(t)
		t.Logf("%s=%d: %d rounds: %v", proof.SeedVar, seed, rounds, tally)
	})
}

// workRound runs workers on new IDs, and then finishes each ID without faults.
func workRound(t *testing.T, processes []*engine.Database, seed uint64, round int) *board {
	b := &board{clock: newClock(), attempts: map[once.Key][]attempt{}}
	id := func(i int) string { return fmt.Sprintf("%d-%d", round, i) }
	newWorker := func(n int) *worker {
		database := processes[n%len(processes)]
		return &worker{board: b, id: n, chance: rand.New(rand.NewPCG(seed, uint64(round*10+n))), database: database, store: database.Store}
	}
	var wg sync.WaitGroup
	for n := range clients {
		w := newWorker(n)
		plan := rand.New(rand.NewPCG(seed, uint64(round*10+n)<<32))
		w.store = storetest.FaultyTx(w.store, failing(plan))
		wg.Go(func() {
			for range 5 {
				if err := w.work(t.Context(), id(w.chance.IntN(keysAtOnce))); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, round, err)
				}
			}
		})
	}
	wg.Wait()
	last := newWorker(clients)
	for k := range b.attempts {
		finish(t, last, k)
	}
	return b
}

// failing returns a plan for the calls of one worker. Several goroutines of the
// worker make calls.
func failing(chance *rand.Rand) storetest.Plan {
	var mu sync.Mutex
	return func(storetest.Call) storetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch chance.IntN(30) {
		case 0:
			return storetest.Fault{Request: errLost}
		case 1, 2:
			return storetest.Fault{Reply: errLost}
		case 3:
			return storetest.Fault{Undo: errLost}
		case 4:
			return storetest.Fault{Undo: once.ErrConflict}
		default:
			return storetest.Fault{}
		}
	}
}

// finish calls with a key until it gets an answer.
func finish(t *testing.T, w *worker, k once.Key) {
	for end := time.Now().Add(time.Minute); ; {
		w.count++
		a := attempt{how: "last", client: w.id, proposal: answer{value: int64(w.id+1)*1_000_000 + w.count}}
		op := inside
		if k.Operation != inside.Name {
			op, a.how = w.outside(), "Do"
		}
		err := w.note(op.For(k.ID), a, func(ctx context.Context, u once.Work[int64]) (int64, error) {
			if op == inside {
				return once.DoTx(ctx, w.store, u, func(ctx context.Context, tx engine.Tx) (int64, error) {
					return w.effect(ctx, tx.Exec, k, a.proposal, -1)
				})
			}
			return once.Do(ctx, w.store, u, func(ctx context.Context, k once.Key) (int64, error) {
				return w.effect(ctx, w.database.Exec, k, a.proposal, -1)
			})
		})
		all := w.attempts[k]
		switch latest := all[len(all)-1]; {
		case err != nil, time.Now().After(end):
			t.Fatalf("%v cannot be finished: %v\n%s", k, err, told(all))
		case latest.result == answered:
			return
		}
	}
}

// checkEffects compares the effects of a key with the answer of the last call.
func checkEffects(t *testing.T, database *engine.Database, k once.Key, attempts []attempt) {
	where := " FROM effect WHERE name = '" + nameOf(k) + "'"
	rows, value := database.MustNumber(t, "SELECT count(*)"+where), database.MustNumber(t, "SELECT COALESCE(MAX(value), 0)"+where)
	last := attempts[len(attempts)-1].answer
	if last.rejected && rows != 0 || !last.rejected && (rows != 1 || value != last.value) {
		t.Errorf("%v has %d effects, the latest %d, and its answer is %v:\n%s", k, rows, value, last, told(attempts))
	}
}

// TestWrongAnswersAreRejected checks that wrong answers are found.
func TestWrongAnswersAreRejected(t *testing.T) {
	mine := func(value, at int64) attempt {
		return attempt{proposal: answer{value: value}, called: at, settled: at + 1, verdict: verdict{answer: answer{value: value}}}
	}
	replay := func(value, of, at int64) attempt {
		a := mine(value, at)
		a.answer, a.replayed = answer{value: of}, true
		return a
	}
	lost := mine(3, 0)
	lost.verdict, lost.settled = verdict{result: unknown}, never
	for name, c := range map[string]struct {
		attempts []attempt
		right    bool
	}{
		"one and its replays":           {[]attempt{mine(1, 0), replay(2, 1, 2), replay(3, 1, 4)}, true},
		"a lost one, found later":       {[]attempt{lost, replay(4, 3, 5)}, true},
		"two that ran":                  {[]attempt{mine(1, 0), mine(2, 2)}, false},
		"a replay of nothing":           {[]attempt{replay(1, 1, 0)}, false},
		"a replay of another":           {[]attempt{mine(1, 0), replay(2, 5, 2)}, false},
		"a replay before there was one": {[]attempt{replay(2, 1, 0), mine(1, 2)}, false},
		"the answer has changed":        {[]attempt{lost, replay(4, 3, 5), mine(5, 7)}, false},
		"a yes that became a no": {[]attempt{mine(1, 0), {proposal: answer{value: 2}, called: 2, settled: 3,
			verdict: verdict{answer: answer{1, true}, replayed: true}}}, false},
	} {
		err := checkAnswers(c.attempts)
		if right := err == nil; right != c.right || errors.Is(err, errUndecided) {
			t.Errorf("%s: taken for right: %v (%v)", name, right, err)
		}
	}
}
