package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// worker does random units of work through Do, DoTx and InTx, on a store with
// faults.
type worker struct {
	*board
	*process
	id     int
	chance *rand.Rand
	count  int64
}

// board has the attempts of all workers.
type board struct {
	*clock

	mu       sync.Mutex
	attempts map[once.Key][]attempt
}

const (
	workLease = 500 * time.Millisecond
	callTime  = 20 * time.Second
)

var (
	inside = &once.Operation[int64]{Name: "inside", Policy: once.Policy{Lease: workLease, Wait: 2 * time.Second}}

	// speculative has the keys of inside.
	speculative = &once.Operation[int64]{Name: inside.Name, Policy: inside.Policy, Speculative: true}
)

// outside is work on another system, which can be asked. A statement may still
// arrive for a while after its caller gave up.
func (w *worker) outside() *once.Operation[int64] {
	return &once.Operation[int64]{Name: "outside", Policy: inside.Policy, SettleTime: workLease,
		Lookup: func(ctx context.Context, k once.Key) (int64, bool, error) {
			_, value, err := w.effects.read(ctx, k)
			return value, value > 0, err
		}}
}

func nameOf(k once.Key) string { return k.Operation + " " + k.ID }

// work does one unit in a random way.
func (w *worker) work(ctx context.Context, id string) error {
	w.count++
	a := attempt{client: w.id, proposal: answer{value: int64(w.id+1)*1_000_000 + w.count}}
	mood := w.chance.IntN(8)
	a.proposal.rejected = mood == 0
	how := w.chance.IntN(5)
	if w.txs == nil {
		how = 4
	}
	switch how {
	case 0, 1:
		op := []*once.Operation[int64]{inside, speculative}[how]
		a.how = "DoTx"
		return w.note(op.For(id), a, func(ctx context.Context, u once.Work[int64]) (int64, error) {
			return once.DoTx(ctx, w.txs, u, func(ctx context.Context, in tx) (int64, error) {
				return w.effect(ctx, in.write, u.Key(), a.proposal, mood)
			})
		})
	case 2:
		a.how = "InTx"
		return w.note(inside.For(id), a, func(ctx context.Context, u once.Work[int64]) (int64, error) {
			return w.inTx(ctx, u, a.proposal, mood)
		})
	default:
		a.how = "Do"
		return w.note(w.outside().For(id), a, func(ctx context.Context, u once.Work[int64]) (int64, error) {
			return once.Do(ctx, w.store, u, func(ctx context.Context, k once.Key) (int64, error) {
				value, err := w.effect(ctx, w.effects.write, k, a.proposal, mood)
				if errors.Is(err, errNothingDone) {
					err = once.NotDone(err)
				}
				return value, err
			})
		})
	}
}

// effect has the effect of a unit, unless the work is to reject, or to fail.
func (w *worker) effect(ctx context.Context, write func(context.Context, once.Key, int64) error, k once.Key, a answer, mood int) (int64, error) {
	switch {
	case a.rejected:
		return a.value, once.ErrRejected
	case mood == 1:
		return 0, errNothingDone
	}
	err := write(ctx, k, a.value)
	if err == nil && mood == 3 {
		err = errAfterwards
	}
	return a.value, err
}

// errAfterwards is returned by work that fails after its effect.
var errAfterwards = errors.New("failed afterwards, on purpose")

// inTx does the work in a transaction of the caller, and sometimes rolls it
// back.
func (w *worker) inTx(ctx context.Context, u once.Work[int64], a answer, mood int) (int64, error) {
	in, err := w.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: begin: %w", errNothingDone, err)
	}
	value, err := once.InTx(ctx, w.txs, in, u, func(ctx context.Context) (int64, error) {
		return w.effect(ctx, in.write, u.Key(), a, mood)
	})
	if err != nil && !errors.Is(err, once.ErrRejected) || mood == 2 {
		_ = in.rollback(context.WithoutCancel(ctx)) // it may have ended
		return 0, errors.Join(errNothingDone, err)
	}
	if err := in.commit(ctx); err != nil {
		return 0, fmt.Errorf("%w: commit: %w", once.ErrOutcomeUnknown, err)
	}
	return value, err
}

// note makes an attempt and records it.
func (w *worker) note(u once.Work[int64], a attempt, do func(context.Context, once.Work[int64]) (int64, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	var report once.Report
	a.called = w.now()
	value, err := do(ctx, u.Report(&report))
	a.settled = w.now()
	a.verdict = verdict{result: resultOf(err, a.how != "Do"), replayed: report.Replayed, err: err}
	switch a.result {
	case answered:
		a.answer = answer{value, errors.Is(err, once.ErrRejected)}
	case unknown:
		a.settled = never // it may still turn out to have happened
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts[u.Key()] = append(w.attempts[u.Key()], a)
	if _, again := once.MayRetry(err); err != nil && !again && !errors.Is(err, once.ErrRejected) {
		return err
	}
	return nil
}
