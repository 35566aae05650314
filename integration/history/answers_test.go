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
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/storetest"
)

// TestFirstAnswers checks that all calls of Do, DoTx and InTx on a key return
// the answer of one of them, whose effect exists exactly once, although
// requests and replies are lost, commits fail, and transactions are rolled
// back.
func TestFirstAnswers(t *testing.T) {
	seed := proof.Seed(t)
	onEach(t, func(t *testing.T, p *place) {
		tally, decided := map[string]int{}, &decisions{}
		var mu sync.Mutex
		rounds := inRounds(t, p, func(round int) error {
			b := &board{clock: newClock(), attempts: map[once.Key][]attempt{}}
			if err := workRound(t.Context(), p, b, seed, round); err != nil {
				return fmt.Errorf("%s=%d, round %d: %w", proof.SeedVar, seed, round, err)
			}
			for _, attempts := range b.attempts {
				err := checkAnswers(attempts)
				mu.Lock()
				if err := decided.count(err); err != nil {
					t.Errorf("%s=%d, round %d: %v", proof.SeedVar, seed, round, err)
				}
				for _, a := range attempts {
					tally[a.result.String()+" "+a.how]++
				}
				mu.Unlock()
			}
			return nil
		})
		decided.report(t)
		t.Logf("%s=%d: %d rounds: %v", proof.SeedVar, seed, rounds, tally)
	})
}

// workRound runs workers on new IDs, then finishes each ID without faults, and
// checks its effects.
func workRound(ctx context.Context, p *place, b *board, seed uint64, round int) error {
	processes, end, err := p.processes(ctx, 4)
	if err != nil {
		return err
	}
	defer end()
	id := func(i int) string { return fmt.Sprintf("%d-%d", round, i) }
	newWorker := func(n int, of *process) *worker {
		return &worker{board: b, process: of, id: n, chance: rand.New(rand.NewPCG(seed, uint64(round*10+n)))}
	}
	disturbed := processes[:len(processes)-1]
	for _, is := range disturbed {
		if is.line != nil {
			is.line.repeats = true
		}
	}
	disturb(disturbed, seed, round)
	errs := make([]error, clients)
	var working sync.WaitGroup
	for n := range clients {
		with, ended := disturbed[n%len(disturbed)].faulty(failing(rand.New(rand.NewPCG(seed, uint64(round*10+n)<<32))))
		w := newWorker(n, with)
		working.Go(func() {
			defer ended()
			for range p.units {
				errs[n] = errors.Join(errs[n], w.work(ctx, id(w.chance.IntN(keysAtOnce))))
			}
		})
	}
	working.Wait()
	last := newWorker(clients, processes[len(processes)-1])
	for k := range b.attempts {
		errs = append(errs, finish(last, k))
	}
	calm(disturbed)
	for k, attempts := range b.attempts {
		errs = append(errs, checkEffects(ctx, last.effects, k, attempts))
	}
	return errors.Join(errs...)
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
func finish(w *worker, k once.Key) error {
	for end := time.Now().Add(time.Minute); ; {
		w.count++
		a := attempt{how: "last", client: w.id, proposal: answer{value: int64(w.id+1)*1_000_000 + w.count}}
		op := inside
		if k.Operation != inside.Name {
			op, a.how = w.outside(), "Do"
		}
		err := w.note(op.For(k.ID), a, func(ctx context.Context, u once.Work[int64]) (int64, error) {
			if op == inside {
				return once.DoTx(ctx, w.txs, u, func(ctx context.Context, in tx) (int64, error) {
					return w.effect(ctx, in.write, k, a.proposal, -1)
				})
			}
			return once.Do(ctx, w.store, u, func(ctx context.Context, k once.Key) (int64, error) {
				return w.effect(ctx, w.effects.write, k, a.proposal, -1)
			})
		})
		all := w.attempts[k]
		switch latest := all[len(all)-1]; {
		case err != nil, time.Now().After(end):
			return fmt.Errorf("%v cannot be finished: %w\n%s", k, err, told(all))
		case latest.result == answered:
			return nil
		}
	}
}

// checkEffects compares the effects of a key with the answer of the last call.
func checkEffects(ctx context.Context, of effects, k once.Key, attempts []attempt) error {
	n, value, err := of.read(ctx, k)
	if err != nil {
		return err
	}
	last := attempts[len(attempts)-1].answer
	if last.rejected && n != 0 || !last.rejected && (n != 1 || value != last.value) {
		return fmt.Errorf("%v has %d effects, the latest %d, and its answer is %v:\n%s", k, n, value, last, told(attempts))
	}
	return nil
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
