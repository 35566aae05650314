//go:build go1.25

package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// losesCommit is a transaction whose commit is lost in its first run. The later
// runs do what then does.
func losesCommit(then func(context.Context) error) func(context.Context) error {
	lost := false
	return func(ctx context.Context) error {
		if !lost {
			lost = true
			return once.ErrOutcomeUnknown
		}
		return then(ctx)
	}
}

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// The end of the run does not keep a worker from finding out what it committed.
func TestTheOutcomeOfACommitIsFoundOutAfterTheRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{store: memstore.New(nil)}
		ctx, end := context.WithCancel(t.Context())
		end()
		err := e.repeat(ctx, losesCommit(func(ctx context.Context) error {
			time.Sleep(storeTime / 2)
			return ctx.Err()
		}))
		if err != nil {
			t.Error(err)
		}
	})
}

// A database that does not answer must not keep Run from returning.
func TestFindingOutTheOutcomeOfACommitEndsSoonAfterTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{store: memstore.New(nil)}
		ctx, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		begun := time.Now()
		err := e.repeat(ctx, losesCommit(untilDone))
		if took := time.Since(begun); !errors.Is(err, context.Canceled) || took != time.Hour+storeTime {
			t.Errorf("it ended after %v, with %v", took, err)
		}
	})
}

// Counting has a limit of its own, because it goes on after the run ends.
func TestCountingEndsIfTheStoreHangsAfterALostCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		e := newCounting(st, func(int, func(error) error) error { return nil })
		run := losesCommit(untilDone)
		e.transact = func(ctx context.Context, _ []once.ClaimRequest, _ func([]once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
			return nil, run(ctx)
		}
		it, begun := uncounted("a"), time.Now()
		e.count(t.Context(), it)
		if took := time.Since(begun); took > 2*storeTime || it.debt.begun != 1 {
			t.Errorf("it ended after %v, and %d attempts are still to be counted", took, it.debt.begun)
		}
	})
}
