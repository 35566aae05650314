//go:build linux

package crash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
)

// A successor runs while a worker stalls. expect checks the end of the worker
// after it continued.
var stallTests = []struct {
	way       string
	lost      bool // the database ends the transaction of the stalled worker
	successor func(context.Context, *scene) (string, error)
	expect    func(ctx context.Context, s *scene, successor string, failed error, e ending) error
}{
	{way: stallKey, successor: doWithKey, expect: func(ctx context.Context, s *scene, successor string, failed error, e ending) error {
		return errors.Join(failed, refusedAsLate(e), checkKey(ctx, s, successor, nil), recorded(ctx, s, s.resending(), successor))
	}},
	{way: stallBefore, successor: doPaths()[0].run, expect: func(ctx context.Context, s *scene, successor string, failed error, e ending) error {
		return errors.Join(failed, refusedAsLate(e), onceOutside(ctx, s, successor, nil), recorded(ctx, s, s.asking(), successor))
	}},
	// The call that asked has recorded the same answer as the late one.
	{way: stallAfter, successor: doPaths()[0].run, expect: func(ctx context.Context, s *scene, successor string, failed error, e ending) error {
		return errors.Join(failed, sameAnswer(e, successor), onceOutside(ctx, s, successor, nil), recorded(ctx, s, s.asking(), successor))
	}},
	// The key is parked, and the late answer is accepted.
	{way: stallPark, successor: doParking, expect: func(ctx context.Context, s *scene, _ string, failed error, e ending) error {
		if !errors.Is(failed, once.ErrParked) {
			return fmt.Errorf("the successor was to be told that the key is parked, not: %w", failed)
		}
		return errors.Join(onceOutside(ctx, s, e.Answer, nil), recorded(ctx, s, s.parking(), e.Answer))
	}},
	{way: stallTx, successor: doTxRefused, expect: func(ctx context.Context, s *scene, _ string, failed error, e ending) error {
		// Its context may also end during an attempt, before SQLite reports that the
		// file is locked.
		if !errors.Is(failed, once.ErrInProgress) && !errors.Is(failed, once.ErrConflict) && !errors.Is(failed, context.DeadlineExceeded) {
			return fmt.Errorf("the successor was to be refused, not: %w", failed)
		}
		return errors.Join(rowsInside(1)(ctx, s, e.Answer, nil), recorded(ctx, s, s.operation("inside"), e.Answer))
	}},
	{way: stallTx, lost: true, successor: doPathsInside, expect: func(ctx context.Context, s *scene, successor string, failed error, e ending) error {
		return errors.Join(failed, sameAnswer(e, successor), rowsInside(1)(ctx, s, successor, nil), recorded(ctx, s, s.operation("inside"), successor))
	}},
}

// doTxRefused has a short time limit: a conflict, which SQLite returns, is
// retried until the context ends.
func doTxRefused(ctx context.Context, s *scene) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	op := s.operation("inside")
	op.Policy.Wait = once.NoWait
	return s.doTx(ctx, op.For(s.id), s.put(1))
}

func doPathsInside(ctx context.Context, s *scene) (string, error) {
	return s.finish(ctx, path{run: txPaths()[0].run})
}

func refusedAsLate(e ending) error {
	if !e.Lost {
		return fmt.Errorf("the stalled worker did not get ErrLeaseLost: %+v", e)
	}
	return nil
}

func sameAnswer(e ending, answer string) error {
	if e.Error != "" || e.Answer != answer {
		return fmt.Errorf("the stalled worker got %+v, not the answer %q", e, answer)
	}
	return nil
}

// recorded calls again, and expects a replay.
func recorded(ctx context.Context, s *scene, op *once.Operation[string], answer string) error {
	rec, err := s.Get(ctx, op.For(s.id).Key())
	if err != nil || rec.Status != once.Done || strings.Trim(string(rec.Outcome.Body), `"`) != answer {
		return fmt.Errorf("recorded is %v with %q, not %q: %v", rec.Status, rec.Outcome.Body, answer, err)
	}
	return nil
}

// everyStall lets a worker stall past its lease in the middle of its work, and
// continue after another call.
func (a *arena) everyStall(t *testing.T, ctx context.Context) {
	for _, test := range stallTests {
		if test.lost && a.engine == SQLite {
			continue // the process has the lock on the file, and no other process can end it
		}
		name := test.way
		if test.lost {
			name += " lost"
		}
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, proof.Patience)
			defer cancel()
			l := a.lanes[0]
			s, k, err := a.begin(ctx, l, path{name: test.way})
			if err != nil {
				t.Fatal(err)
			}
			k.Role = stalls
			if test.lost {
				k.DSN += endsIdleTransactions[a.engine]
			}
			worker := a.talk(t, ctx, k)
			if err := worker.awaitStopped(ctx); err != nil {
				t.Fatal(err)
			}
			answer, err := test.successor(ctx, a.impatient(t, s, k))
			worker.tell("wake up")
			if err := worker.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
			end := worker.hearEnding()
			worker.leave()
			err = test.expect(ctx, s, answer, err, end)
			a.judge(err)
			if err != nil {
				t.Errorf("%s: %v", a.engine, err)
			}
		})
	}
}

// endsIdleTransactions are parameters of a DSN.
var endsIdleTransactions = map[string]string{
	Postgres: "&idle_in_transaction_session_timeout=300",
	PGStore:  "&idle_in_transaction_session_timeout=300",
	Parts:    "&idle_in_transaction_session_timeout=300",
	MariaDB:  "?idle_transaction_timeout=1",
}

// impatient returns the same scene with a short wait for the lock of an SQLite
// file.
func (a *arena) impatient(t *testing.T, s *scene, k task) *scene {
	if a.engine != SQLite || k.Path != stallTx {
		return s
	}
	p := k.place
	p.DSN = strings.Replace(p.DSN, "busy_timeout(5000)", "busy_timeout(20)", 1)
	w, err := p.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	same := *s
	same.world = w
	return &same
}
