//go:build linux

package crash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// scene is one unit of work, with an engine and another system. Processes die
// in it, one after another, until one finishes it.
type scene struct {
	world
	outside outside
	trap    *trap
	id      string
	lease   time.Duration
	settle  time.Duration // the SettleTime; 0: its process is known to be dead

	failed bool   // work that fails once has failed in this process
	hold   func() // called after an effect in a transaction, before the work returns; may be nil
}

// path is a way through the library on which processes die.
type path struct {
	name   string
	cold   bool                                               // the process has not yet used its connection or the store
	prefix func(id string) string                             // of the store's tables; nil: that of the engine
	stage  func(context.Context, *scene) error                // makes what earlier attempts have left; may be nil
	run    func(context.Context, *scene) (string, error)      // repeated until it succeeds
	check  func(context.Context, *scene, string, error) error // checks the answer and the error of run
}

// finish runs the path until it succeeds, or cannot be retried.
func (s *scene) finish(ctx context.Context, p path) (answer string, err error) {
	for {
		answer, err = p.run(ctx, s)
		after, again := once.MayRetry(err)
		if err == nil || !again {
			return answer, err
		}
		timer := time.NewTimer(min(after+time.Millisecond, longestPause))
		select {
		case <-ctx.Done():
			return answer, errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

const longestPause = 200 * time.Millisecond

// warm uses the connection and the store, so that the process dies like one
// that has run for a while.
func (s *scene) warm(ctx context.Context) error {
	op := &once.Operation[string]{Name: "warm", OnUnknown: once.Resend}
	//nolint:unstablekey // nobody repeats this work
	_, err := once.Do(ctx, s.world, op.For(s.id+"-"+rand.Text()), func(context.Context, once.Key) (string, error) { return "", nil })
	if err != nil {
		return err
	}
	id := s.id + "-" + rand.Text()
	//nolint:unstablekey // as above
	_, err = s.doTx(ctx, op.For(id), func(_ context.Context, put func(id, mark string) error) (string, error) {
		return "", put(id, "warm")
	})
	return err
}

// operation returns an operation with the settings that all paths share.
func (s *scene) operation(name string) *once.Operation[string] {
	return &once.Operation[string]{Name: name, Policy: once.Policy{Lease: s.lease}, SettleTime: s.settle}
}

// asking returns an operation with a Lookup that asks the other system.
func (s *scene) asking() *once.Operation[string] {
	op := s.operation("asking")
	op.Lookup = func(context.Context, once.Key) (string, bool, error) {
		defer s.trap.around("lookup")()
		marks, err := s.outside.effects(s.id)
		if err != nil || len(marks) == 0 {
			return "", false, err
		}
		return marks[0], true, nil
	}
	return op
}

func (s *scene) resending() *once.Operation[string] {
	op := s.operation("resending")
	op.OnUnknown = once.Resend
	return op
}

func (s *scene) async() *once.Operation[string] {
	op := s.resending()
	op.AsyncCommit, op.KeyValidFor = true, time.Hour
	return op
}

func (s *scene) parking() *once.Operation[string] {
	op := s.operation("parking")
	op.OnUnknown = once.Park
	return op
}

// send is work in the other system: it makes one effect of the ID each time.
func (s *scene) send(context.Context, once.Key) (string, error) {
	return s.working(func(mark string) (string, error) { return mark, s.outside.add(s.id, mark) })
}

// sendKey is like send to a system that honours the key. Each request counts as
// an effect of the ID, too.
func (s *scene) sendKey(_ context.Context, key once.Key) (string, error) {
	return s.working(func(mark string) (string, error) {
		if err := s.outside.add(s.id, mark); err != nil {
			return "", err
		}
		return s.outside.addOnce(key, mark)
	})
}

// working passes the points of work: before, inside and after it.
func (s *scene) working(work func(mark string) (string, error)) (string, error) {
	boundary := s.trap.reach("work")
	s.trap.pass(boundary, "before")
	mark := rand.Text()
	s.trap.pass(boundary, "inside")
	answer, err := work(mark)
	s.trap.pass(boundary, "after")
	return answer, err
}

// put returns work in a transaction: n rows with the same mark.
func (s *scene) put(n int) insideWork[string] {
	return func(ctx context.Context, put func(id, mark string) error) (string, error) {
		return s.working(func(mark string) (string, error) {
			for range n {
				if err := put(s.id, mark); err != nil {
					return "", err
				}
			}
			if s.hold != nil {
				s.hold()
			}
			return mark, nil
		})
	}
}

// onceOutside checks that the other system has the effect of the answer, and no
// other.
func onceOutside(_ context.Context, s *scene, answer string, err error) error {
	marks, asked := s.outside.effects(s.id)
	return errors.Join(err, seen(asked, exactly("outside", marks, answer, 1)))
}

// rowsInside checks that the database has n rows with the answer, and no other.
func rowsInside(n int) func(context.Context, *scene, string, error) error {
	return func(ctx context.Context, s *scene, answer string, err error) error {
		marks, asked := s.rows(ctx, s.id)
		return errors.Join(err, seen(asked, exactly("inside", marks, answer, n)))
	}
}

// miscount is an error for effects that happened too often, or were lost.
type miscount struct {
	where string
	got   []string
	want  string
	n     int
}

func (m miscount) Error() string {
	return fmt.Sprintf("effects %s are %q, want %d of %q", m.where, m.got, m.n, m.want)
}

// unchecked is the error of a failed check: the effects may exist or not.
type unchecked struct{ error }

func (u unchecked) Error() string {
	return fmt.Sprintf("the effects could not be checked, so this is neither a loss nor a pass: %v", u.error)
}

func (u unchecked) Unwrap() error { return u.error }

// seen returns the error of a count, or unchecked if the effects could not be
// read.
func seen(asked, count error) error {
	if asked != nil {
		return unchecked{asked}
	}
	return count
}

// exactly checks that marks has the answer n times, and nothing else.
func exactly(where string, marks []string, answer string, n int) error {
	right := len(marks) == n
	for _, mark := range marks {
		right = right && mark == answer
	}
	if right {
		return nil
	}
	return miscount{where, marks, answer, n}
}

// between checks the number of effects that cannot be told apart.
func between(marks []string, least, limit int) error {
	if n := len(marks); n < least || n > limit {
		return miscount{fmt.Sprintf("outside, of %d to %d,", least, limit), marks, "any", least}
	}
	return nil
}

// abandon leaves an Unknown attempt of a key, whose lease has lapsed. It
// repeats a claim that fails or meets a transaction in flight, which may be one
// on another key.
func (s *scene) abandon(ctx context.Context, key once.Key) error {
	r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: token()}, Lease: time.Millisecond, Wait: longestPause}
	for {
		rec, err := s.Claim(ctx, r)
		switch {
		case err == nil && rec.Owner == r.Owner:
			return s.await(ctx, key, once.Unknown)
		case ctx.Err() != nil:
			return fmt.Errorf("the key could not be claimed: it is %v (%w)", rec.Status, errors.Join(err, ctx.Err()))
		}
	}
}

// await waits until a key has a status.
func (s *scene) await(ctx context.Context, key once.Key, want once.Status) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		rec, err := s.Get(ctx, key)
		if err != nil || rec.Status == want {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the key stays %v: %w", rec.Status, ctx.Err())
		case <-tick.C:
		}
	}
}

func token() (t [16]byte) {
	_, _ = rand.Read(t[:])
	return t
}
