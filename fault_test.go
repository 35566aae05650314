package once_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

func TestOwnClaimIsRecognisedAfterALostReply(t *testing.T) {
	var lost atomic.Bool
	s := &hooks{Store: memstore.New(nil), claim: func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		rec, err := claim(ctx, r)
		if lost.CompareAndSwap(false, true) {
			return once.Record{}, errNet
		}
		return rec, err
	}}
	c, how := counter{}, once.Report{}
	if got, err := once.Do(testCtx, s, parked.For("1").Report(&how), c.run("x", nil)); got != "x" || err != nil || how.Attempt != 1 {
		t.Errorf("%q, %v, %+v", got, err, how)
	}
	c.ran(t, 1)
}

// The first claim is still in flight when its caller stops waiting for the
// reply. The claim that the caller then meets is its own.
func TestOwnClaimInFlightIsNotARival(t *testing.T) {
	// While it is claimed again, which does not count as waiting; and while it is waited for.
	for applied, op := range map[int]*once.Operation[string]{2: refusing, 5: parked} {
		calls := 0
		var first once.ClaimRequest
		s := &hooks{Store: memstore.New(nil)}
		s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			calls++
			switch {
			case calls == 1:
				first = r
				return once.Record{}, errNet
			case calls == applied:
				if _, err := claim(ctx, first); err != nil {
					t.Error(err)
				}
			case calls > applied:
				return claim(ctx, r)
			}
			return once.Record{Key: r.Key, Status: once.Running}, nil
		}
		c := counter{}
		if got, err := once.Do(testCtx, s, op.For("1"), c.run("x", nil)); got != "x" || err != nil {
			t.Errorf("applied by call %d: %q, %v", applied, got, err)
		}
		c.ran(t, 1)
	}
}

// Work that never started is not unknown because the replies to its claim were
// lost.
func TestClaimWithoutAReplyIsGivenBack(t *testing.T) {
	for name, cause := range map[string]error{"store out of reach": errNet, "caller gone": context.Canceled} {
		ctx, cancel := context.WithCancel(testCtx)
		defer cancel()
		calls := 0
		s := &hooks{Store: memstore.New(nil), claim: func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
			rec, err := claim(context.WithoutCancel(ctx), r)
			calls++
			switch {
			case calls == 1 && cause == context.Canceled:
				cancel()
				return once.Record{}, cause
			case calls <= 4 && cause == errNet:
				return once.Record{}, cause
			default:
				return rec, err
			}
		}}
		c := counter{}
		_, err := once.Do(ctx, s, parked.For("1"), c.run("", nil))
		wantErr(t, err, cause)
		c.ran(t, 0)
		if rec := wantStatus(t, s, parked.For("1").Key(), once.Absent); rec.Attempt != 1 {
			t.Errorf("%s: attempt %d", name, rec.Attempt)
		}
	}
}

func TestReasonsAreTextThatEveryDatabaseTakes(t *testing.T) {
	s := memstore.New(nil)
	text := "a\x00b\xff" + strings.Repeat("€", 300)
	_, _ = once.Do(testCtx, s, parked.For("1"), (&counter{}).run("", errors.New(text)))
	rec := wantStatus(t, s, parked.For("1").Key(), once.Parked)
	if !utf8.ValidString(rec.Reason) || strings.Contains(rec.Reason, "\x00") || len(rec.Reason) > 500 || !strings.HasPrefix(rec.Reason, "ab€") {
		t.Errorf("reason %q", rec.Reason)
	}
}

// A claim that lapsed before its reply arrived was never used, so it is not
// unknown.
func TestOwnClaimThatLapsedUnused(t *testing.T) {
	calls := 0
	s := &hooks{Store: memstore.New(nil)}
	s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		if calls++; calls > 1 {
			return claim(ctx, r)
		}
		r.Lease = time.Nanosecond
		if _, err := claim(ctx, r); err != nil {
			t.Error(err)
		}
		for get(t, s.Store, r.Key).Status == once.Running {
			runtime.Gosched()
		}
		return once.Record{}, errNet
	}
	c, how := counter{}, once.Report{}
	if got, err := once.Do(testCtx, s, parked.For("1").Report(&how), c.run("x", nil)); got != "x" || err != nil || how.Attempt != 2 {
		t.Errorf("%q, %v, %+v", got, err, how)
	}
	c.ran(t, 1)
}

// If the claim took most of its lease, the work is not cancelled right after it
// begins.
func TestSlowClaimDoesNotEatTheLeaseOfTheWork(t *testing.T) {
	extended := make(chan struct{}, 10)
	s := &hooks{Store: memstore.New(nil)}
	s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		rec, err := claim(ctx, r)
		for seen := rec; err == nil && seen.LeaseLeft > r.Lease/2; runtime.Gosched() {
			seen, err = s.Store.Get(ctx, r.Key)
		}
		return rec, err
	}
	s.extend = func(ctx context.Context, fence once.Fence, d time.Duration) error {
		extended <- struct{}{}
		return s.Store.Extend(ctx, fence, time.Hour)
	}
	op := &once.Operation[string]{Name: "slow", OnUnknown: once.Park, Policy: once.Policy{Lease: time.Second}}
	_, err := once.Do(testCtx, s, op.For("1"), func(ctx context.Context, _ once.Key) (string, error) {
		if len(extended) != 1 {
			t.Errorf("extended %d times before the work began", len(extended))
		}
		<-extended
		<-extended // by the heartbeat, while working
		return "", ctx.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSlowClaimThatLapsesIsTakenAnew(t *testing.T) {
	slow := 2
	s := &hooks{Store: memstore.New(nil)}
	s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		rec, err := claim(ctx, r)
		if slow--; slow >= 0 {
			for get(t, s.Store, r.Key).Status == once.Running {
				runtime.Gosched()
			}
		}
		return rec, err
	}
	op := &once.Operation[string]{Name: "slow", OnUnknown: once.Park, Policy: once.Policy{Lease: 100 * time.Millisecond}}
	c, how := counter{}, once.Report{}
	if _, err := once.Do(testCtx, s, op.For("1").Report(&how), c.run("", nil)); err != nil || how.Attempt != 3 {
		t.Errorf("%v, %+v", err, how)
	}
	slow = 100
	_, err := once.Do(testCtx, s, op.For("2"), c.run("", nil))
	if _, ok := once.MayRetry(err); err == nil || !ok {
		t.Errorf("a store that is always too slow: %v", err)
	}
	c.ran(t, 1)
}

func TestCallerWhoLeavesBeforeTheWorkBeginsFreesTheKey(t *testing.T) {
	ctx, cancel := context.WithCancel(testCtx)
	s := &hooks{Store: memstore.New(nil), claim: func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		defer cancel()
		return claim(ctx, r)
	}}
	c := counter{}
	_, err := once.Do(ctx, s, parked.For("1"), c.run("", nil))
	wantErr(t, err, context.Canceled)
	c.ran(t, 0)
	wantStatus(t, s, parked.For("1").Key(), once.Absent)
}

func TestStoreDownFailsClosed(t *testing.T) {
	s := &hooks{Store: memstore.New(nil), claim: func(context.Context, once.ClaimRequest, claimFunc) (once.Record, error) {
		return once.Record{}, errNet
	}}
	c := counter{}
	_, err := once.Do(testCtx, s, parked.For("1"), c.run("", nil))
	wantErr(t, err, errNet)
	if _, ok := once.MayRetry(err); !ok {
		t.Error("not to be retried")
	}
	c.ran(t, 0)
}

func TestSettlementIsRepeatedAfterALostReply(t *testing.T) {
	lost := 0
	s := &hooks{Store: memstore.New(nil), settle: func(ctx context.Context, set once.Settlement, settle settleFunc) error {
		err := settle(ctx, set)
		if lost++; lost <= 2 {
			return errNet
		}
		return err
	}}
	c := counter{}
	if _, err := once.Do(testCtx, s, parked.For("1"), c.run("x", nil)); err != nil {
		t.Fatal(err)
	}
	if got, err := once.Do(testCtx, s, parked.For("1"), c.run("", nil)); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	c.ran(t, 1)
}

func TestCallerWhoLeavesDoesNotUndoWhatHappened(t *testing.T) {
	s := memstore.New(nil)
	ctx, cancel := context.WithCancel(testCtx)
	_, err := once.Do(ctx, s, parked.For("1"), func(context.Context, once.Key) (string, error) {
		cancel()
		return "happened", nil
	})
	if err != nil {
		t.Error(err)
	}
	wantStatus(t, s, parked.For("1").Key(), once.Done)
}

func TestHolderThatCannotExtendIsCancelledBeforeItsLeaseEnds(t *testing.T) {
	for name, extendErr := range map[string]error{"out of reach": errNet, "lost": once.ErrLeaseLost} {
		s := &hooks{Store: memstore.New(nil), extend: func(context.Context, once.Fence, time.Duration) error { return extendErr }}
		op := &once.Operation[string]{Name: "cut-off", OnUnknown: once.Resend, Policy: once.Policy{Lease: 2 * time.Second}}
		_, err := once.Do(testCtx, s, op.For(name), func(ctx context.Context, key once.Key) (string, error) {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, once.ErrLeaseLost) || !errors.Is(cause, extendErr) {
				t.Errorf("%s: cause %v", name, cause)
			}
			wantStatus(t, s, key, once.Running)
			return "", ctx.Err()
		})
		wantErr(t, err, once.ErrOutcomeUnknown, context.Canceled)
	}
}

// A holder stalls past its lease, another attempt takes over, and then the
// first continues.
func TestStaleHolderIsRefused(t *testing.T) {
	shared, ps := processes(2)
	op := &once.Operation[string]{Name: "stale", OnUnknown: once.Resend, Policy: once.Policy{Lease: 50 * time.Millisecond}}
	ps[0].extend = func(ctx context.Context, fence once.Fence, d time.Duration) error { // stalled: its heartbeat does not run
		<-ctx.Done()
		return ctx.Err()
	}
	c := counter{}
	got, err := once.Do(testCtx, ps[0], op.For("1"), func(_ context.Context, key once.Key) (string, error) {
		for get(t, shared, key).Status == once.Running {
			runtime.Gosched()
		}
		got, err := once.Do(testCtx, ps[1], op.For("1"), c.run("second", nil))
		if got != "second" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		return "first", nil
	})
	wantErr(t, err, once.ErrLeaseLost)
	if _, ok := once.MayRetry(err); got != "first" || !ok || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("%q, retry %v, %v", got, ok, err)
	}
	c.ran(t, 1)
	var how once.Report
	if got, err := once.Do(testCtx, ps[0], op.For("1").Report(&how), c.run("", nil)); got != "second" || err != nil || how.Attempt != 2 {
		t.Errorf("%q, %v, %+v", got, err, how)
	}
}

func TestLateCompletionIsAcceptedIfNobodyTookOver(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.extend = func(ctx context.Context, _ once.Fence, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
	op := &once.Operation[string]{Name: "late", OnUnknown: once.Resend, Policy: once.Policy{Lease: 50 * time.Millisecond}}
	if _, err := once.Do(testCtx, s, op.For("1"), func(_ context.Context, key once.Key) (string, error) {
		for get(t, s, key).Status == once.Running {
			runtime.Gosched()
		}
		return "late", nil
	}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, s, op.For("1").Key(), once.Done)
}

func TestUnknownIsSentAgainOnlyWhereItWasChosen(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	crashed(t, s, resent.For("1").Key())
	var how once.Report
	if got, err := once.Do(testCtx, s, resent.For("1").Report(&how), c.run("again", nil)); got != "again" || err != nil || how.Attempt != 2 {
		t.Errorf("%q, %v, %+v", got, err, how)
	}
	crashed(t, s, parked.For("1").Key())
	for range 2 {
		_, err := once.Do(testCtx, s, parked.For("1"), c.run("", nil))
		wantErr(t, err, once.ErrParked)
		wantStatus(t, s, parked.For("1").Key(), once.Parked)
	}
	c.ran(t, 1)
}

func TestUnknownIsSentAgainByOneOf64(t *testing.T) {
	shared, ps := processes(4)
	crashed(t, shared, resent.For("1").Key())
	c := counter{}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if got, err := once.Do(testCtx, ps[i%4], resent.For("1"), c.run("again", nil)); got != "again" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}()
	}
	wg.Wait()
	c.ran(t, 1)
}

func TestUnknownPastTheValidityOfTheKeyIsParked(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	op := &once.Operation[string]{Name: "valid", OnUnknown: once.Resend, KeyValidFor: time.Nanosecond}
	asked := &once.Operation[string]{Name: "asked", KeyValidFor: time.Nanosecond,
		Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
	for _, o := range []*once.Operation[string]{op, asked} {
		crashed(t, s, o.For("1").Key())
		_, err := once.Do(testCtx, s, o.For("1"), c.run("", nil))
		wantErr(t, err, once.ErrParked)
	}
	c.ran(t, 0)
}

func TestLookup(t *testing.T) {
	type answer struct {
		value    string
		happened bool
		err      error
	}
	for name, c := range map[string]struct {
		answer
		want   string
		err    error
		runs   int64
		status once.Status
	}{
		"it happened":     {answer{"found", true, nil}, "found", nil, 0, once.Done},
		"it did not":      {answer{"", false, nil}, "ran", nil, 1, once.Done},
		"it was rejected": {answer{"no", true, once.ErrRejected}, "no", once.ErrRejected, 0, once.Done},
		"no, wrapped":     {answer{"no", false, errors.Join(errCause, once.ErrRejected)}, "no", once.ErrRejected, 0, once.Done},
		"pending":         {answer{"", false, once.RetryAfter(time.Minute, errCause)}, "", once.ErrOutcomeUnknown, 0, once.Unknown},
		"pending, yes":    {answer{"x", true, errCause}, "", once.ErrOutcomeUnknown, 0, once.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s, work := memstore.New(nil), counter{}
			op := &once.Operation[string]{Name: "ask", Lookup: func(_ context.Context, key once.Key) (string, bool, error) {
				if key.ID != "1" || key.Scope != "t" {
					t.Errorf("asked about %+v", key)
				}
				return c.value, c.happened, c.answer.err
			}}
			crashed(t, s, op.For("1").In("t").Key())
			got, err := once.Do(testCtx, s, op.For("1").In("t"), work.run("ran", nil))
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v", got, err)
			}
			if after, _ := once.MayRetry(err); name == "pending" && after != time.Minute {
				t.Errorf("retry after %v", after)
			}
			work.ran(t, c.runs)
			wantStatus(t, s, op.For("1").In("t").Key(), c.status)
		})
	}
}

func TestLookupIsNotBelievedBeforeTheSettleTime(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	op := &once.Operation[string]{Name: "settling", SettleTime: time.Hour,
		Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
	crashed(t, s, op.For("1").Key())
	_, err := once.Do(testCtx, s, op.For("1"), c.run("", nil))
	wantErr(t, err, once.ErrOutcomeUnknown)
	if after, ok := once.MayRetry(err); !ok || after < 59*time.Minute || after > time.Hour {
		t.Errorf("retry after %v, %v", after, ok)
	}
	op.SettleTime = time.Nanosecond
	if got, err := once.Do(testCtx, s, op.For("1"), c.run("ran", nil)); got != "ran" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Lookup finds nothing, and before that is recorded the stalled holder
// completes. Its answer counts.
func TestHolderCompletesWhileItIsAskedAbout(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	var op *once.Operation[string]
	var rec once.Record
	op = &once.Operation[string]{Name: "race", Lookup: func(context.Context, once.Key) (string, bool, error) {
		_, err := once.InTx(testCtx, s, s.Begin(), inTx.For("unrelated"), func(context.Context) (string, error) { return "", nil })
		if err != nil {
			t.Error(err)
		}
		out, _ := op.Outcome("the holder's")
		return "", false, once.MarkDone(testCtx, s, rec, out, "the stalled holder woke up")
	}}
	rec = crashed(t, s, op.For("1").Key())
	if got, err := once.Do(testCtx, s, op.For("1"), c.run("", nil)); got != "the holder's" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	c.ran(t, 0)
}

func TestDecisionsByAPerson(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	out, err := parked.Outcome("seen in the dashboard")
	if err != nil {
		t.Fatal(err)
	}
	happened, not := parked.For("happened"), parked.For("not")
	for _, w := range []once.Work[string]{happened, not} {
		_, _ = once.Do(testCtx, s, w, c.run("", errCause))
	}
	first := get(t, s, happened.Key())
	wantErr(t, once.MarkDone(testCtx, s, first, out, ""), once.ErrInvalid)
	wantErr(t, once.MarkDone(testCtx, s, once.Record{Key: happened.Key()}, out, "why"), once.ErrInvalid)
	if err := once.MarkDone(testCtx, s, first, out, "OPS-1"); err != nil {
		t.Fatal(err)
	}
	if rec := wantStatus(t, s, happened.Key(), once.Done); rec.Reason != "OPS-1" {
		t.Errorf("reason %q", rec.Reason)
	}
	wantErr(t, once.MarkNotDone(testCtx, s, first, "too late"), once.ErrLeaseLost)
	if got, err := once.Do(testCtx, s, happened, c.run("", nil)); got != "seen in the dashboard" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	second := get(t, s, not.Key())
	if err := once.MarkNotDone(testCtx, s, second, "OPS-2"); err != nil {
		t.Fatal(err)
	}
	if got, err := once.Do(testCtx, s, not, c.run("ran", nil)); got != "ran" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	wantErr(t, once.MarkNotDone(testCtx, s, second, "too late"), once.ErrLeaseLost)
	wantErr(t, once.MarkNotDone(testCtx, s, get(t, s, not.Key()), "done is final"), once.ErrInvalid)
	c.ran(t, 3)
}

// Two people, or a person and the holder, come to the same conclusion about a
// record that both have seen. The store takes the second for a repetition, and
// only who was first has decided.
func TestOnlyTheFirstOfTwoEqualDecisionsIsMade(t *testing.T) {
	out := once.Outcome{Omitted: true}
	for name, decide := range map[string]func(once.Store, once.Record, string) error{
		"done": func(s once.Store, rec once.Record, reason string) error {
			return once.MarkDone(testCtx, s, rec, out, reason)
		},
		"free": func(s once.Store, rec once.Record, reason string) error {
			return once.MarkNotDone(testCtx, s, rec, reason)
		},
	} {
		s := memstore.New(nil)
		rec := crashed(t, s, parked.For(name).Key())
		if err := decide(s, rec, "by ann: seen"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, decide(s, rec, "by bob: seen"), once.ErrLeaseLost)
		if err := decide(s, rec, "by ann: seen"); err != nil { // her first reply was lost
			t.Errorf("%s: repeated by who was first: %v", name, err)
		}
		if now := get(t, s, rec.Key); now.Reason != "by ann: seen" {
			t.Errorf("%s: the reason is %q", name, now.Reason)
		}
	}

	s := memstore.New(nil)
	rec := crashed(t, s, parked.For("by its holder").Key())
	set := once.Settlement{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Absent, KeepKey: time.Hour, Reason: "it failed"}
	if err := s.Settle(testCtx, set); err != nil {
		t.Fatal(err)
	}
	wantErr(t, once.MarkNotDone(testCtx, s, rec, "by ann: not there"), once.ErrLeaseLost)
}

func TestAskLeavesAResendToTheCallWithTheInput(t *testing.T) {
	s := memstore.New(nil)
	rec := crashed(t, s, resent.For("1").Key())
	if now, err := resent.Ask(testCtx, s, rec); err != nil || now.Status != once.Unknown {
		t.Errorf("%v, %v", now.Status, err)
	}
	undecided := &once.Operation[string]{Name: "resend"}
	_, err := undecided.Ask(testCtx, s, rec)
	wantErr(t, err, once.ErrOutcomeUnknown)
	if now, err := resent.Ask(testCtx, s, once.Record{Status: once.Parked}); err != nil || now.Status != once.Parked {
		t.Errorf("%v, %v", now.Status, err)
	}
}
