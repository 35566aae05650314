package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/memstore"
)

// If a store refuses an outcome, for example because it exceeds a packet of the
// server, the work must not run again.
func TestOutcomeThatTheStoreRefusesIsDone(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.settle = func(ctx context.Context, set once.Settlement, settle settleFunc) error {
		if len(set.Outcome.Body) > 100 {
			return once.ErrOutcomeRefused
		}
		return settle(ctx, set)
	}
	c := counter{}
	long := strings.Repeat("x", 101)
	if got, err := once.Do(testCtx, s, resent.For("1"), c.run(long, nil)); got != long || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_, err := once.Do(testCtx, s, resent.For("1"), c.run("", nil))
	wantErr(t, err, once.ErrOutcomeUnavailable)
	c.ran(t, 1)
}

// The outcome is left out only if the store refused it, and not after another
// final error.
func TestOutcomeIsNotLeftOutForAnotherReason(t *testing.T) {
	for _, final := range []error{once.ErrInvalid, once.ErrClosed, once.ErrCorrupt} {
		s, c := &hooks{Store: memstore.New(nil)}, counter{}
		s.settle = func(ctx context.Context, set once.Settlement, settle settleFunc) error {
			if set.Outcome.Omitted {
				return settle(ctx, set) // it would be taken
			}
			return final
		}
		if got, err := once.Do(testCtx, s, parked.For("1"), c.run("answer", nil)); got != "answer" || !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%v: %q, %v", final, got, err)
		}
		wantStatus(t, s, parked.For("1").Key(), once.Running)
	}
}

// Work that Lookup found is done, even if the store refuses its answer.
func TestLookedUpOutcomeThatTheStoreRefusesIsDone(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.settle = func(ctx context.Context, set once.Settlement, settle settleFunc) error {
		if len(set.Outcome.Body) > 100 {
			return once.ErrOutcomeRefused
		}
		return settle(ctx, set)
	}
	for _, no := range []error{nil, once.ErrRejected} {
		asked := &once.Operation[string]{Name: fmt.Sprint("asked-", no == nil), Lookup: func(context.Context, once.Key) (string, bool, error) {
			return strings.Repeat("x", 101), true, no
		}}
		c := counter{}
		_, err := once.Do(testCtx, s, asked.For("1"), c.run("", errNet))
		wantErr(t, err, once.ErrOutcomeUnknown)
		_, err = once.Do(testCtx, s, asked.For("1"), c.run("", nil))
		wantErr(t, err, once.ErrOutcomeUnavailable)
		if errors.Is(err, once.ErrRejected) != (no != nil) {
			t.Errorf("rejected %v: %v", no != nil, err)
		}
		c.ran(t, 1)
	}
}

// If the store refuses an outcome, and then does not take it without its body,
// the caller learns why it was not taken: that may pass, and a refusal does not.
func TestTroubleAfterARefusalMayBeRetried(t *testing.T) {
	for _, trouble := range []error{once.ErrLeaseLost, errNet} {
		faketime.Long(t, func(t *testing.T) {
			s := &hooks{Store: memstore.New(nil)}
			s.settle = func(_ context.Context, set once.Settlement, _ settleFunc) error {
				if len(set.Outcome.Body) > 0 {
					return once.ErrOutcomeRefused
				}
				return trouble
			}
			c := counter{}
			_, err := once.Do(t.Context(), s, resent.For("1"), c.run("answer", nil))
			if _, ok := once.MayRetry(err); !ok || !errors.Is(err, trouble) || errors.Is(err, once.ErrOutcomeRefused) {
				t.Errorf("Do returned %v, and MayRetry: %t", err, ok)
			}
		})
	}
}
