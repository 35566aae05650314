package once_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// A step says of itself that nothing happened. That must not free the key of the work that it is a step of.
func TestNotDoneOfAStepSaysNothingOfItsParent(t *testing.T) {
	steps := map[string]func(ctx context.Context, s *memstore.Store, parent once.Key) error{
		"Do": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			_, err := once.Do(ctx, s, resent.Under(parent), (&counter{}).run("", once.NotDone(errNet)))
			return err
		},
		"DoTx": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			_, err := once.DoTx(ctx, s, inTx.Under(parent), (&counter{}).write("row", "", once.NotDone(errNet)))
			return err
		},
		"InTx": func(ctx context.Context, s *memstore.Store, parent once.Key) error {
			tx := s.Begin()
			defer tx.Rollback()
			_, err := once.InTx(ctx, s, tx, inTx.Under(parent), func(context.Context) (string, error) { return "", once.NotDone(errNet) })
			return err
		},
	}
	for name, step := range steps {
		s, charged := memstore.New(nil), 0
		for range 2 {
			_, err := once.Do(testCtx, s, parked.For("1"), func(ctx context.Context, key once.Key) (string, error) {
				charged++
				return "charged", step(ctx, s, key)
			})
			wantErr(t, err, once.ErrParked)
		}
		if charged != 1 {
			t.Errorf("%s: charged %d times", name, charged)
		}
	}
}

func TestTheCallerOfAStepStillSeesItsError(t *testing.T) {
	_, err := once.Do(testCtx, memstore.New(nil), parked.For("1"), (&counter{}).run("", once.NotDone(once.RetryAfter(time.Minute, errNet))))
	wantErr(t, err, errNet)
	if after, ok := once.MayRetry(err); after != time.Minute || !ok {
		t.Errorf("retry after %v, %v", after, ok)
	}
	_, err = once.Do(testCtx, memstore.New(nil), parked.For("1"), (&counter{}).run("", once.NotDone(once.Permanent(errNet))))
	if _, ok := once.MayRetry(err); ok {
		t.Error("permanent, and to be retried")
	}
}

// A store that refuses an outcome, for example a packet too large for the server, must not make the work run again.
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

// Only a refusal of the outcome makes it be left out, not any error that is final.
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

// What Lookup found is done, even if the store refuses the answer.
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

// silent is a store whose Get answers when its context ends, and not before.
type silent struct{ *hooks }

func (s silent) Get(ctx context.Context, _ once.Key) (once.Record, error) {
	<-ctx.Done()
	return once.Record{}, ctx.Err()
}

func TestWaitIsKeptOnAStoreThatDoesNotAnswer(t *testing.T) {
	_, ps := processes(2)
	brief := &once.Operation[string]{Name: "brief", OnUnknown: once.Park, Policy: once.Policy{Wait: 10 * time.Millisecond}}
	_, err := once.Do(testCtx, ps[0], brief.For("1"), func(context.Context, once.Key) (string, error) {
		begun := time.Now()
		_, err := once.Do(testCtx, silent{ps[1]}, brief.For("1").Redelivered(), never[string](t))
		wantErr(t, err, once.ErrInProgress)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("waited for %v", took)
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// slowClaim answers when the lease has lapsed.
func (h *hooks) slowClaim(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
	rec, err := claim(ctx, r)
	for seen := rec; err == nil && seen.Status == once.Running; runtime.Gosched() {
		seen, err = h.Store.Get(ctx, r.Key)
	}
	return rec, err
}

// Claims that lapsed before their caller heard of them were never used: none of them may be left to be parked.
func TestClaimsTooSlowToBeUsedAreGivenBack(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.claim = s.slowClaim
	op := &once.Operation[string]{Name: "slow", OnUnknown: once.Park, Policy: once.Policy{Lease: 20 * time.Millisecond}}
	if _, err := once.Do(testCtx, s, op.For("1"), never[string](t)); err == nil {
		t.Error("no error")
	}
	wantStatus(t, s, op.For("1").Key(), once.Absent)
}

func TestAskRefusesTheRecordOfAnotherOperation(t *testing.T) {
	s := memstore.New(nil)
	mail := &once.Operation[string]{Name: "mail", Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
	for _, key := range []once.Key{{Operation: "charge", ID: "1"}, {Operation: "order/charge", ID: "1"}, {Operation: "email", ID: "1"}} {
		rec := crashed(t, s, key)
		_, err := mail.Ask(testCtx, s, rec)
		wantErr(t, err, once.ErrInvalid)
		wantStatus(t, s, key, once.Unknown)
	}
	rec := crashed(t, s, once.Key{Operation: "order/mail", ID: "1"})
	if now, err := mail.Ask(testCtx, s, rec); err != nil || now.Status != once.Absent {
		t.Errorf("%v, %v", now.Status, err)
	}
}

func TestTakeoverWithoutInputKeepsTheFingerprint(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	_, err := once.Do(testCtx, s, resent.For("1").Input([]byte("100 EUR")), c.run("", errors.New("timeout")))
	wantErr(t, err, once.ErrOutcomeUnknown)
	if _, err := once.Do(testCtx, s, resent.For("1"), c.run("ok", nil)); err != nil {
		t.Fatal(err)
	}
	_, err = once.Do(testCtx, s, resent.For("1").Input([]byte("999 EUR")), never[string](t))
	wantErr(t, err, once.ErrMismatch)
}

func TestTakeoverWithoutACauseKeepsTheCause(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	cause := once.Key{Operation: "pay", ID: "1"}
	_, err := once.Do(testCtx, s, resent.For("1").CausedBy(cause.String()), c.run("", errors.New("timeout")))
	wantErr(t, err, once.ErrOutcomeUnknown)
	if _, err := once.Do(testCtx, s, resent.For("1"), c.run("ok", nil)); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Get(testCtx, resent.For("1").Key()); err != nil || rec.Attempt != 2 || rec.Cause != cause.UUID() {
		t.Errorf("the record is %+v, %v, want attempt 2 with the cause %v", rec, err, cause)
	}
}

// What carries a key may carry anything in its place: that is no cause, and no error.
func TestCausesThatAreNoKeys(t *testing.T) {
	s := memstore.New(nil)
	text := once.Key{Operation: "pay", ID: "1"}.String()
	for i, not := range []string{"", "pay", strings.ToUpper(text), text[:35], text + "0", strings.ReplaceAll(text, "-", ""),
		text[:8] + text[9:] + "-", "c5b8a2b0-8a37-4b6e-9c1a-000000000000", strings.Repeat("g", 36)} {
		work := resent.For(strconv.Itoa(i)).CausedBy(text).CausedBy(not)
		_, err := once.DoTx(testCtx, s, work, func(context.Context, *memstore.Tx) (string, error) { return "", nil })
		if err != nil {
			t.Fatal(err)
		}
		if rec, err := s.Get(testCtx, work.Key()); err != nil || rec.Cause != [16]byte{} {
			t.Errorf("caused by %q: the record is %+v, %v", not, rec, err)
		}
	}
}

// The second attempt did nothing. That says nothing of the first, which may have happened: the key is not free, and when
// the other system has forgotten it, it is parked.
func TestAnAttemptThatDidNothingDoesNotClearTheOneBefore(t *testing.T) {
	valid := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: time.Hour}
	forgotten := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: time.Nanosecond}
	for name, second := range map[string]func(ctx context.Context, leave func(), s *hooks) error{
		"says NotDone": func(ctx context.Context, _ func(), s *hooks) error {
			_, err := once.Do(ctx, s, valid.For("1"), (&counter{}).run("", once.NotDone(errNet)))
			return err
		},
		"is left by its caller": func(ctx context.Context, leave func(), s *hooks) error {
			s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
				if r.Attempt > 0 {
					defer leave()
				}
				return claim(ctx, r)
			}
			_, err := once.Do(ctx, s, valid.For("1"), never[string](t))
			return err
		},
		"never hears of its claim": func(ctx context.Context, _ func(), s *hooks) error {
			s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
				rec, err := claim(ctx, r)
				if r.Attempt > 0 {
					return once.Record{}, errNet
				}
				return rec, err
			}
			_, err := once.Do(ctx, s, valid.For("1"), never[string](t))
			return err
		},
		"is too slow to begin": func(ctx context.Context, _ func(), s *hooks) error {
			s.claim = s.slowClaim
			brief := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{Lease: 20 * time.Millisecond}}
			_, err := once.Do(ctx, s, brief.For("1"), never[string](t))
			return err
		},
	} {
		s := &hooks{Store: memstore.New(nil)}
		crashed(t, s, valid.For("1").Key())
		ctx, leave := context.WithCancel(testCtx)
		if err := second(ctx, leave, s); err == nil {
			t.Errorf("the second attempt %s: no error", name)
		}
		leave()
		s.claim = nil
		if rec := get(t, s, valid.For("1").Key()); rec.Status != once.Unknown || rec.Attempt < 2 {
			t.Errorf("the second attempt %s: %v, attempt %d", name, rec.Status, rec.Attempt)
		}
		_, err := once.Do(testCtx, s, forgotten.For("1"), never[string](t))
		wantErr(t, err, once.ErrParked)
	}
}
