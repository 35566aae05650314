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

// scene is one unit of work, on an engine and with the other system beside it. Processes die in it, one after another,
// until somebody finishes it.
type scene struct {
	world
	outside outside
	trap    *trap
	id      string
	lease   time.Duration
	settle  time.Duration // how long an attempt can still arrive after its lease; 0: its process is known to be dead

	failed bool   // work that fails once has done so in this process
	hold   func() // what work does after its effect in a transaction, before it returns; nil: nothing
}

// path is a way through the library in which processes die.
type path struct {
	name   string
	cold   bool                                               // the process has used neither its connection nor the store before
	prefix func(id string) string                             // of the store's tables; nil: the engine's own
	stage  func(context.Context, *scene) error                // what earlier attempts have left behind; may be nil
	run    func(context.Context, *scene) (string, error)      // what is repeated until it succeeds
	check  func(context.Context, *scene, string, error) error // whether that is right: the answer of run, and what it ended with
}

// finish runs the path until it succeeds, or until calling again is pointless.
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

// warm lets the process use its connection and the store, so that it dies as one that has been running for long.
func (s *scene) warm(ctx context.Context) error {
	op := &once.Operation[string]{Name: "warm", OnUnknown: once.Resend}
	_, err := once.Do(ctx, s.world, op.For(s.id+"-"+rand.Text()), func(context.Context, once.Key) (string, error) { return "", nil })
	if err != nil {
		return err
	}
	id := s.id + "-" + rand.Text()
	_, err = s.doTx(ctx, op.For(id), func(_ context.Context, put func(id, mark string) error) (string, error) {
		return "", put(id, "warm")
	})
	return err
}

// operation has the lease of the scene. All that is the same for every path is set here.
func (s *scene) operation(name string) *once.Operation[string] {
	return &once.Operation[string]{Name: name, Policy: once.Policy{Lease: s.lease}, SettleTime: s.settle}
}

// asking is an operation that asks the other system what it has done.
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

func (s *scene) soft() *once.Operation[string] {
	op := s.resending()
	op.AsyncCommit, op.KeyValidFor = true, time.Hour
	return op
}

func (s *scene) parking() *once.Operation[string] {
	op := s.operation("parking")
	op.OnUnknown = once.Park
	return op
}

// send is work outside: one effect of the id, each time it is done.
func (s *scene) send(context.Context, once.Key) (string, error) {
	return s.working(func(mark string) (string, error) { return mark, s.outside.add(s.id, mark) })
}

// sendKey is send to a system that takes the key. That it was asked counts as an effect of the id, too.
func (s *scene) sendKey(_ context.Context, key once.Key) (string, error) {
	return s.working(func(mark string) (string, error) {
		if err := s.outside.add(s.id, mark); err != nil {
			return "", err
		}
		return s.outside.addOnce(key, mark)
	})
}

// working passes the points of work: before it, on the way to its effect, and after it.
func (s *scene) working(work func(mark string) (string, error)) (string, error) {
	boundary := s.trap.reach("work")
	s.trap.pass(boundary, "before")
	mark := rand.Text()
	s.trap.pass(boundary, "inside")
	answer, err := work(mark)
	s.trap.pass(boundary, "after")
	return answer, err
}

// put is work inside: rows with the same mark, in the transaction.
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

// onceOutside checks that the other system has the effect that the answer speaks of, and no other.
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

// miscount is an effect that happened too often, or was lost.
type miscount struct {
	where string
	got   []string
	want  string
	n     int
}

func (m miscount) Error() string {
	return fmt.Sprintf("effects %s are %q, want %d of %q", m.where, m.got, m.n, m.want)
}

// unchecked is a look at effects that failed. What is not there for a look that failed may be there, or not.
type unchecked struct{ error }

func (u unchecked) Error() string {
	return fmt.Sprintf("the effects could not be looked at, so this is neither a loss nor right: %v", u.error)
}

func (u unchecked) Unwrap() error { return u.error }

// seen is what a count says, if it could be taken.
func seen(asked, count error) error {
	if asked != nil {
		return unchecked{asked}
	}
	return count
}

// exactly checks that marks are n times the answer.
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

// between checks how often something happened that nobody can tell apart.
func between(marks []string, least, limit int) error {
	if n := len(marks); n < least || n > limit {
		return miscount{fmt.Sprintf("outside, of %d to %d,", least, limit), marks, "any", least}
	}
	return nil
}

// abandon leaves an attempt of a key behind, whose lease has lapsed: it is unknown. A claim that failed, or met a
// transaction in flight, which may be one on another key, is repeated.
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

// await looks until a key is in a status.
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
