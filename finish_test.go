//go:build go1.25

package once_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// A store that is back after an outage gets the answer, whatever the outage
// was.
func TestAnOutageAsTheWorkEndsDoesNotLoseTheAnswer(t *testing.T) {
	for name, fails := range map[string]func(context.Context) error{
		"refused connections": func(context.Context) error { return errNet },
		"no reply":            func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"a suspended process": func(ctx context.Context) error { // once, for longer than all that is bounded
			time.Sleep(time.Hour) // fake time
			return ctx.Err()
		},
	} {
		for _, no := range []error{nil, once.ErrRejected} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &hooks{Store: memstore.New(nil)}
					up := time.Now().Add(20 * time.Second)
					s.extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
						if time.Now().Before(up) {
							return errNet
						}
						return s.Store.Extend(ctx, fence, d)
					}
					s.settle = func(ctx context.Context, set once.Settlement, settle settleFunc) error {
						if time.Now().Before(up) {
							return fails(ctx)
						}
						return settle(ctx, set)
					}
					c := counter{}
					if got, err := once.Do(t.Context(), s, resent.For("1"), c.run("answer", no)); got != "answer" || !errors.Is(err, no) {
						t.Errorf("the first call: %q, %v", got, err)
					}
					if got, err := once.Do(t.Context(), s, resent.For("1"), c.run("", nil)); got != "answer" || !errors.Is(err, no) {
						t.Errorf("a duplicate: %q, %v", got, err)
					}
					c.ran(t, 1)
				})
			})
		}
	}
}

// Work whose end could not be recorded is unknown, not done without its answer.
func TestWhatCannotBeRecordedIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hooks{Store: memstore.New(nil)}
		s.extend = func(context.Context, once.Fence, time.Duration) error { return errNet }
		s.settle = func(context.Context, once.Settlement, settleFunc) error { return errNet }
		c, begun := counter{}, time.Now()
		got, err := once.Do(t.Context(), s, parked.For("1"), c.run("answer", nil))
		if got != "answer" || !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%q, %v", got, err)
		}
		if took := time.Since(begun); took < 30*time.Second || took > 2*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		wantStatus(t, s, parked.For("1").Key(), once.Unknown)
		s.settle = nil
		_, err = once.Do(t.Context(), s, parked.For("1"), c.run("", nil))
		wantErr(t, err, once.ErrParked)
		c.ran(t, 1)
	})
}

// An unreachable store does not mean that the work sent nothing.
func TestAStoreThatIsGoneIsNoDialErrorOfTheWork(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for name, c := range map[string]struct {
		store func(*hooks)
		call  func(context.Context, *hooks) error
	}{
		"as the work has ended": {
			func(s *hooks) {
				s.settle = func(context.Context, once.Settlement, settleFunc) error { return refused }
			},
			func(ctx context.Context, s *hooks) error {
				_, err := once.Do(ctx, s, parked.For("1"), (&counter{}).run("charged", nil))
				return err
			},
		},
		"after the reply to a commit was lost": {
			func(s *hooks) {
				var lost bool
				s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
					if lost {
						return nil, refused
					}
					lost = true
					_, _ = transact(ctx, rs, body)
					return nil, fmt.Errorf("%w: the commit was sent", once.ErrOutcomeUnknown)
				}
			},
			func(ctx context.Context, s *hooks) error {
				_, err := once.DoTx(ctx, s, inTx.For("1"), (&counter{}).write("row", "", nil))
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &hooks{Store: memstore.New(nil)}
				c.store(s)
				err := c.call(t.Context(), s)
				wantErr(t, err, once.ErrOutcomeUnknown)
				if !errors.Is(err, refused) || once.IsDialError(err) {
					t.Errorf("%v is a dial error: %t", err, once.IsDialError(err))
				}
			})
		})
	}
}
