//go:build linux

package crash

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
)

// unknownPaths begin with an abandoned attempt: another call takes it over, or
// asks about it.
func unknownPaths() []path {
	left := func(op func(*scene) *once.Operation[string]) func(context.Context, *scene) error {
		return func(ctx context.Context, s *scene) error { return s.abandon(ctx, op(s).For(s.id).Key()) }
	}
	happened := func(ctx context.Context, s *scene) error {
		return errors.Join(s.outside.add(s.id, "earlier"), left((*scene).asking)(ctx, s))
	}
	do := doPaths()[0].run
	return []path{
		{name: "takeover-yes", stage: happened, run: do, check: onceOutside},
		{name: "takeover-no", stage: left((*scene).asking), run: do, check: onceOutside},
		{name: "takeover-resend", stage: left((*scene).resending), run: doWithKey, check: checkKey},
		{name: "takeover-park", stage: left((*scene).parking), run: doParking, check: checkParked},
		{name: "takeover-dotx", stage: left((*scene).asking), run: doTxAsking, check: rowsInside(1)},
		{name: "ask-yes", stage: happened, run: askAbout((*scene).asking), check: afterAsking(do, onceOutside)},
		{name: "ask-no", stage: left((*scene).asking), run: askAbout((*scene).asking), check: afterAsking(do, onceOutside)},
		{name: "ask-park", stage: left((*scene).parking), run: askAbout((*scene).parking), check: afterAsking(doParking, checkParked)},
	}
}

func doTxAsking(ctx context.Context, s *scene) (string, error) {
	return s.doTx(ctx, s.asking().For(s.id), s.put(1))
}

// askAbout settles an abandoned attempt, and does no work.
func askAbout(operation func(*scene) *once.Operation[string]) func(context.Context, *scene) (string, error) {
	return func(ctx context.Context, s *scene) (string, error) {
		op := operation(s)
		rec, err := s.Get(ctx, op.For(s.id).Key())
		if err != nil {
			return "", err
		}
		_, err = op.Ask(ctx, s.world, rec)
		return "", err
	}
}

// afterAsking checks a call after an abandoned attempt was settled.
func afterAsking(run func(context.Context, *scene) (string, error),
	check func(context.Context, *scene, string, error) error) func(context.Context, *scene, string, error) error {

	return func(ctx context.Context, s *scene, _ string, err error) error {
		answer, ran := s.finish(ctx, path{run: run})
		return errors.Join(err, check(ctx, s, answer, ran))
	}
}

// keepingPaths are Forget and Migrate. They have their own tables, so that a
// process killed in them disturbs no other path.
func keepingPaths() []path {
	return []path{
		{name: "forget", prefix: func(id string) string { return "f" + id + "_" }, stage: leaveDue, run: forget, check: checkForgotten},
		{name: "migrate", cold: true, prefix: func(id string) string { return "m" + id + "_" }, run: migrate, check: checkMigrated},
	}
}

// agedKeys are the kinds of keys of a scene when Forget runs.
var agedKeys = []struct {
	name   string
	status once.Status
}{{"kept", once.Done}, {"expired", once.Expired}, {"gone", once.Absent}}

func (s *scene) agedKey(name string) (id string, key once.Key) {
	id = s.id + "-" + name
	return id, s.operation("inside").For(id).Key()
}

// leaveDue makes a key for each of agedKeys.
func leaveDue(ctx context.Context, s *scene) error {
	if err := s.migrate(ctx); err != nil {
		return err
	}
	for _, aged := range agedKeys {
		id, key := s.agedKey(aged.name)
		if err := s.doOnce(ctx, id); err != nil {
			return fmt.Errorf("%s: %w", aged.name, err)
		}
		if err := s.await(ctx, key, aged.status); err != nil {
			return fmt.Errorf("%s: %w", aged.name, err)
		}
	}
	return nil
}

// forget calls Forget, with a small limit, until nothing is left.
func forget(ctx context.Context, s *scene) (string, error) {
	const limit = 2
	for {
		if n, err := s.Forget(ctx, limit); err != nil || n < limit {
			return "", err
		}
	}
}

// checkForgotten reads the keys and then uses them: a kept one replays, an
// expired one is refused, and a forgotten one is new.
func checkForgotten(ctx context.Context, s *scene, _ string, err error) error {
	for _, aged := range agedKeys {
		id, key := s.agedKey(aged.name)
		rec, got := s.Get(ctx, key)
		if got = seen(got, nil); got == nil && rec.Status != aged.status {
			got = fmt.Errorf("the key that is %s is %v", aged.name, rec.Status)
		}
		ran := s.doOnce(ctx, id)
		want := 1
		switch aged.status {
		case once.Expired:
			if errors.Is(ran, once.ErrExpired) {
				ran = nil
			} else {
				ran = fmt.Errorf("the key that has expired: %w", errors.Join(ran, errors.New("it ran")))
			}
		case once.Absent:
			want = 2
		}
		marks, asked := s.rows(ctx, id)
		if asked = seen(asked, nil); asked == nil && len(marks) != want {
			asked = miscount{"inside " + aged.name, marks, "any", want}
		}
		err = errors.Join(err, got, ran, asked)
	}
	return err
}

// doOnce writes one row for the ID, under the policy of its kind.
func (s *scene) doOnce(ctx context.Context, id string) error {
	op := s.operation("inside")
	switch id {
	case s.id + "-gone":
		op.Policy.KeepOutcome, op.Policy.KeepKey = 1, 1
	case s.id + "-expired":
		op.Policy.KeepOutcome = 1
	}
	_, err := s.doTx(ctx, op.For(id), func(_ context.Context, put func(id, mark string) error) (string, error) {
		return "", put(id, "one")
	})
	return err
}

func migrate(ctx context.Context, s *scene) (string, error) {
	defer s.trap.around("store:migrate")()
	return "", s.migrate(ctx)
}

// checkMigrated checks that the tables can be used.
func checkMigrated(ctx context.Context, s *scene, _ string, err error) error {
	if err != nil {
		return err
	}
	answer, err := s.doTx(ctx, s.operation("inside").For(s.id), s.put(1))
	return rowsInside(1)(ctx, s, answer, err)
}
