//go:build linux

package crash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
)

// paths returns the paths through the library. Each has its own points on each
// engine.
func paths() []path {
	all := [][]path{doPaths(), txPaths(), unknownPaths(), keepingPaths()}
	var flat []path
	for _, some := range all {
		flat = append(flat, some...)
	}
	return flat
}

func pathNamed(name string) (path, error) {
	for _, p := range paths() {
		if p.name == name {
			return p, nil
		}
	}
	return path{}, fmt.Errorf("no such path: %q", name)
}

// doPaths are paths through Do, one for each of its promises.
func doPaths() []path {
	ask := func(ctx context.Context, s *scene) (string, error) {
		return once.Do(ctx, s.world, s.asking().For(s.id), s.send)
	}
	return []path{
		{name: "do", run: ask, check: onceOutside},
		{name: "do-cold", cold: true, run: ask, check: onceOutside},
		{name: "do-extend", run: doExtending, check: onceOutside},
		{name: "do-key", run: doWithKey, check: checkKey},
		{name: "do-async", run: doAsync, check: checkKey},
		{name: "do-park", run: doParking, check: checkParked},
		{name: "do-park-fail", run: doParkingFails, check: checkParked},
		{name: "do-resend", run: doResending, check: checkResent},
		{name: "do-not-done", run: doNotDone, check: onceOutside},
	}
}

// doExtending works until its lease has been extended. A process that finishes
// the work need not.
func doExtending(ctx context.Context, s *scene) (string, error) {
	select {
	case <-s.leaseExtended(): // by an earlier call
	default:
	}
	return once.Do(ctx, s.world, s.asking().For(s.id), func(ctx context.Context, key once.Key) (string, error) {
		if s.trap == nil {
			return s.send(ctx, key)
		}
		select {
		case <-s.leaseExtended():
		case <-ctx.Done():
			return "", once.NotDone(ctx.Err())
		}
		return s.send(ctx, key)
	})
}

func doWithKey(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.resending().For(s.id), s.sendKey)
}

// checkKey counts what the other system was asked, and what it did.
func checkKey(ctx context.Context, s *scene, answer string, err error) error {
	key := s.resending().For(s.id).Key()
	first, found := s.outside.addedOnce(key)
	if answer == "" {
		err = errors.Join(err, errors.New("there is no answer"))
	}
	return errors.Join(err, seen(found, exactly("outside by key", marksOf(first), answer, 1)), attempted(ctx, s, key))
}

// doAsync is like doWithKey, with a claim that the server may forget if it
// crashes.
func doAsync(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.async().For(s.id), s.sendKey)
}

func doResending(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.resending().For(s.id), s.send)
}

func checkResent(ctx context.Context, s *scene, _ string, err error) error {
	return errors.Join(err, attempted(ctx, s, s.resending().For(s.id).Key()))
}

// attempted checks that there are one or more effects, but no more than
// attempts.
func attempted(ctx context.Context, s *scene, key once.Key) error {
	rec, err := s.Get(ctx, key)
	marks, asked := s.outside.effects(s.id)
	return seen(errors.Join(err, asked), between(marks, 1, int(rec.Attempt)))
}

func doParking(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.parking().For(s.id), s.send)
}

// doParkingFails fails after its effect, which parks the key.
func doParkingFails(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.parking().For(s.id), func(ctx context.Context, key once.Key) (string, error) {
		answer, err := s.send(ctx, key)
		return answer, errors.Join(err, errors.New("the answer was lost"))
	})
}

// checkParked checks that there is at most one effect, and that the key is
// parked unless there is an answer.
func checkParked(ctx context.Context, s *scene, answer string, err error) error {
	if err == nil {
		return onceOutside(ctx, s, answer, nil)
	}
	if !errors.Is(err, once.ErrParked) {
		return err
	}
	rec, got := s.Get(ctx, s.parking().For(s.id).Key())
	err = seen(got, nil)
	if got == nil && rec.Status != once.Parked {
		err = fmt.Errorf("the record is %v, not parked", rec.Status)
	}
	marks, asked := s.outside.effects(s.id)
	return errors.Join(err, seen(asked, between(marks, 0, 1)))
}

// doNotDone first does nothing and returns NotDone.
func doNotDone(ctx context.Context, s *scene) (string, error) {
	return once.Do(ctx, s.world, s.asking().For(s.id), func(ctx context.Context, key once.Key) (string, error) {
		if !s.failed {
			s.failed = true
			return "", once.NotDone(errors.New("the line was busy"))
		}
		return s.send(ctx, key)
	})
}

// txPaths are paths through DoTx and InTx.
func txPaths() []path {
	tx := func(ctx context.Context, s *scene) (string, error) {
		return s.doTx(ctx, s.operation("inside").For(s.id), s.put(1))
	}
	return []path{
		{name: "dotx", run: tx, check: rowsInside(1)},
		{name: "dotx-cold", cold: true, run: tx, check: rowsInside(1)},
		{name: "dotx-two", run: func(ctx context.Context, s *scene) (string, error) {
			return s.doTx(ctx, s.operation("inside").For(s.id), s.put(2))
		}, check: rowsInside(2)},
		{name: "dotx-plain", run: doTxPlain, check: checkPlain},
		{name: "dotx-fail", run: doTxFails, check: rowsInside(1)},
		{name: "dotx-reject", run: doTxRejects, check: checkRejected},
		{name: "intx", run: inTx, check: rowsInside(1)},
		{name: "intx-fail", run: inTxFails, check: rowsInside(1)},
	}
}

func doTxPlain(ctx context.Context, s *scene) (string, error) {
	op := &once.Operation[struct{}]{Name: "plain"}
	return "", s.doTxPlain(ctx, op.For(s.id), func(ctx context.Context, put func(id, mark string) error) (struct{}, error) {
		_, err := s.put(1)(ctx, put)
		return struct{}{}, err
	})
}

func checkPlain(ctx context.Context, s *scene, _ string, err error) error {
	marks, asked := s.rows(ctx, s.id)
	if len(marks) != 1 {
		return errors.Join(err, seen(asked, miscount{"inside", marks, "any", 1}))
	}
	return errors.Join(err, seen(asked, nil))
}

// fails returns work that writes its rows and fails, once in this process.
func (s *scene) fails(work insideWork[string]) insideWork[string] {
	return func(ctx context.Context, put func(id, mark string) error) (string, error) {
		answer, err := work(ctx, put)
		if err == nil && !s.failed {
			s.failed = true
			return "", once.RetryAfter(0, errors.New("not this time"))
		}
		return answer, err
	}
}

func doTxFails(ctx context.Context, s *scene) (string, error) {
	return s.doTx(ctx, s.operation("inside").For(s.id), s.fails(s.put(1)))
}

// doTxRejects writes rows, which are rolled back, and rejects, which is
// recorded.
func doTxRejects(ctx context.Context, s *scene) (string, error) {
	return s.doTx(ctx, s.operation("inside").For(s.id), func(ctx context.Context, put func(id, mark string) error) (string, error) {
		answer, err := s.put(1)(ctx, put)
		if err == nil {
			err = once.ErrRejected
		}
		return answer, err
	})
}

// checkRejected calls again: the answer is the same, and there are no rows.
func checkRejected(ctx context.Context, s *scene, answer string, err error) error {
	again, repeated := doTxRejects(ctx, s)
	if !errors.Is(err, once.ErrRejected) || !errors.Is(repeated, once.ErrRejected) || answer == "" || again != answer {
		return fmt.Errorf("rejected with %q (%v), and then with %q (%v)", answer, err, again, repeated)
	}
	return rowsInside(0)(ctx, s, answer, nil)
}

func inTx(ctx context.Context, s *scene) (string, error) {
	return s.inTx(ctx, s.operation("inside").For(s.id), s.put(1))
}

func inTxFails(ctx context.Context, s *scene) (string, error) {
	return s.inTx(ctx, s.operation("inside").For(s.id), s.fails(s.put(1)))
}

// eachPath does the work of an ID in each way: outside, outside with a key, and
// inside. It has no points: its workers and their server are killed at random.
// A server that crashes may forget a claim with AsyncCommit, and then the work
// is sent again.
var eachPath = path{name: "each", run: doEach, check: checkEach}

func doEach(ctx context.Context, s *scene) (string, error) {
	first, err := once.Do(ctx, s.world, s.asking().For(s.id), s.send)
	if err != nil {
		return "", err
	}
	second, err := once.Do(ctx, s.world, s.async().For(s.id), func(_ context.Context, key once.Key) (string, error) {
		sent, err := s.outside.addOnce(key, rand.Text())
		return sent + "/" + rand.Text(), err // so that a lost answer cannot recur
	})
	if err != nil {
		return "", err
	}
	third, err := s.doTx(ctx, s.operation("inside").For(s.id), s.put(1))
	return strings.Join([]string{first, second, third}, " "), err
}

func checkEach(ctx context.Context, s *scene, answer string, err error) error {
	parts := append(strings.Fields(answer), "", "", "")
	sent, found := s.outside.addedOnce(s.async().For(s.id).Key())
	first, _, _ := strings.Cut(parts[1], "/")
	return errors.Join(onceOutside(ctx, s, parts[0], err), seen(found, exactly("outside by key", marksOf(sent), first, 1)),
		rowsInside(1)(ctx, s, parts[2], nil))
}
