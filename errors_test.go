package once_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
)

var errCause = errors.New("cause")

func TestMarksAreNeverNilAndKeepTheirCause(t *testing.T) {
	for name, mark := range map[string]func(error) error{
		"NotDone":    once.NotDone,
		"Permanent":  once.Permanent,
		"RetryAfter": func(err error) error { return once.RetryAfter(time.Second, err) },
	} {
		if mark(nil) == nil || mark(nil).Error() == "" {
			t.Errorf("%s(nil) is no error", name)
		}
		if !errors.Is(mark(fmt.Errorf("wrapped: %w", errCause)), errCause) {
			t.Errorf("%s hides its cause", name)
		}
	}
}

func TestMayRetry(t *testing.T) {
	for _, c := range []struct {
		err   error
		after time.Duration
		ok    bool
	}{
		{nil, 0, false},
		{errCause, 0, true},
		{once.NotDone(errCause), 0, true},
		{once.Permanent(errCause), 0, false},
		{once.NotDone(once.Permanent(nil)), 0, false},
		{once.RetryAfter(3*time.Second, nil), 3 * time.Second, true},
		{once.RetryAfter(-3*time.Second, nil), 0, true},
		{fmt.Errorf("x: %w", once.NotDone(once.RetryAfter(time.Minute, errCause))), time.Minute, true},
		{once.RetryAfter(time.Minute, once.Permanent(nil)), 0, false},
		{once.ErrInProgress, 0, true},
		{once.ErrOutcomeUnknown, 0, true},
		{once.ErrLeaseLost, 0, true},
		{once.ErrConflict, 0, true},
		{once.ErrParked, 0, false},
		{once.ErrMismatch, 0, false},
		{once.ErrExpired, 0, false},
		{once.ErrRejected, 0, false},
		{once.ErrInvalid, 0, false},
		{once.ErrClosed, 0, false},
		{once.ErrInTx, 0, false},
		{once.ErrCorrupt, 0, false},
		{once.ErrOutcomeTooLarge, 0, false},
		{once.ErrOutcomeUnavailable, 0, false},
	} {
		if after, ok := once.MayRetry(c.err); after != c.after || ok != c.ok {
			t.Errorf("MayRetry(%v) = %v, %v; want %v, %v", c.err, after, ok, c.after, c.ok)
		}
	}
}
