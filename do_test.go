package once_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

func TestDoRunsOnceAndReplays(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	for i := range 3 {
		var how once.Report
		got, err := once.Do(testCtx, s, parked.For("1").Report(&how), c.run("answer", nil))
		if err != nil || got != "answer" {
			t.Fatalf("call %d: %q, %v", i, got, err)
		}
		if want := (once.Report{Replayed: i > 0, Attempt: 1}); how != want {
			t.Errorf("call %d: %+v, want %+v", i, how, want)
		}
	}
	c.ran(t, 1)
}

func TestDoGivesTheKeyAndTheClaim(t *testing.T) {
	work := parked.For("1").In("tenant")
	_, err := once.Do(testCtx, memstore.New(nil), work, func(ctx context.Context, key once.Key) (string, error) {
		claim, ok := once.ClaimFrom(ctx)
		if key != work.Key() || !ok || claim != (once.Claim{Key: key, Attempt: 1}) {
			t.Errorf("key %v, claim %v %v", key, claim, ok)
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every falsy value is replayed as an answer, not as a missing one.
func TestDoReplaysFalsyValues(t *testing.T) {
	s := memstore.New(nil)
	replays(t, s, "", "string")
	replays(t, s, 0, "int")
	replays(t, s, false, "bool")
	replays(t, s, struct{}{}, "struct")
	replays[any](t, s, nil, "nil")
	replays(t, s, json.RawMessage("null"), "null")
	replays(t, s, map[string]int{}, "map")
}

func replays[T any](t *testing.T, s once.Store, v T, id string) {
	t.Helper()
	op := &once.Operation[T]{Name: "falsy", OnUnknown: once.Park}
	for i := range 2 {
		got, err := once.Do(testCtx, s, op.For(id), func(context.Context, once.Key) (T, error) {
			if i > 0 {
				t.Errorf("%s: ran again", id)
			}
			return v, nil
		})
		if err != nil || fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", v) {
			t.Errorf("%s: got %#v, %v", id, got, err)
		}
	}
}

func TestDoStoresAnOutcomeAsItIs(t *testing.T) {
	s := memstore.New(nil)
	op := &once.Operation[once.Outcome]{Name: "raw", OnUnknown: once.Park}
	first := once.Outcome{Body: []byte{0, 1, 255}, ContentType: "image/png"}
	for range 2 {
		got, err := once.Do(testCtx, s, op.For("1"), func(context.Context, once.Key) (once.Outcome, error) { return first, nil })
		if err != nil || string(got.Body) != "\x00\x01\xff" || got.ContentType != "image/png" {
			t.Errorf("got %+v, %v", got, err)
		}
		got.Body[0] = 9 // a caller's own copy
	}
}

func TestDoRejectionIsAnAnswer(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	no := fmt.Errorf("declined by the bank: %w", once.ErrRejected)
	got, err := once.Do(testCtx, s, parked.For("1"), c.run("declined", no))
	if got != "declined" || err != no {
		t.Errorf("first: %q, %v", got, err)
	}
	got, err = once.Do(testCtx, s, parked.For("1"), c.run("", nil))
	if got != "declined" || !errors.Is(err, once.ErrRejected) {
		t.Errorf("replay: %q, %v", got, err)
	}
	c.ran(t, 1)
}

func TestDoWhatAnErrorMeans(t *testing.T) {
	asked := &once.Operation[string]{Name: "asked", Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
	for _, c := range []struct {
		op    *once.Operation[string]
		err   error
		after once.Status
		also  error
	}{
		{parked, once.NotDone(errCause), once.Absent, nil},
		{parked, once.NotDone(once.Permanent(errCause)), once.Absent, nil},
		{parked, once.NotDone(once.ErrRejected), once.Absent, nil},
		{parked, errCause, once.Parked, once.ErrParked},
		{parked, once.Permanent(errCause), once.Parked, once.ErrParked},
		{parked, context.DeadlineExceeded, once.Parked, once.ErrParked},
		{resent, errCause, once.Unknown, once.ErrOutcomeUnknown},
		{resent, once.RetryAfter(time.Hour, errCause), once.Unknown, once.ErrOutcomeUnknown},
		{asked, errCause, once.Unknown, once.ErrOutcomeUnknown},
	} {
		s := memstore.New(nil)
		_, err := once.Do(testCtx, s, c.op.For("1"), func(context.Context, once.Key) (string, error) { return "", c.err })
		wantErr(t, err, c.err)
		if c.also != nil {
			wantErr(t, err, c.also)
		}
		rec := wantStatus(t, s, c.op.For("1").Key(), c.after)
		if rec.Attempt != 1 || rec.Reason == "" {
			t.Errorf("%v: attempt %d, reason %q", c.err, rec.Attempt, rec.Reason)
		}
	}
	if after, ok := once.MayRetry(errors.Join(once.RetryAfter(time.Hour, nil))); after != time.Hour || !ok {
		t.Error(after, ok)
	}
}

func TestDoAfterNotDoneRunsAgainAndCountsOn(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	_, err := once.Do(testCtx, s, parked.For("1"), c.run("", once.NotDone(errNet)))
	wantErr(t, err, errNet)
	var how once.Report
	if _, err = once.Do(testCtx, s, parked.For("1").Report(&how), c.run("ok", nil)); err != nil || how.Attempt != 2 {
		t.Errorf("%v, %+v", err, how)
	}
	c.ran(t, 2)
}

func TestDoPanicLeavesTheOutcomeUnknown(t *testing.T) {
	s := memstore.New(nil)
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_, _ = once.Do(testCtx, s, resent.For("1"), func(context.Context, once.Key) (string, error) { panic("boom") })
	}()
	wantStatus(t, s, resent.For("1").Key(), once.Unknown)
	c := counter{}
	if got, err := once.Do(testCtx, s, resent.For("1"), c.run("second", nil)); got != "second" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDoGoexitLeavesTheOutcomeUnknown(t *testing.T) {
	s, gone := memstore.New(nil), make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = once.Do(testCtx, s, parked.For("1"), func(context.Context, once.Key) (string, error) {
			runtime.Goexit() // as a failing test helper in user code does
			return "", nil
		})
	}()
	<-gone
	wantStatus(t, s, parked.For("1").Key(), once.Parked)
}

func TestDoRefusesBadInputBeforeItTouchesTheStore(t *testing.T) {
	lookup := func(context.Context, once.Key) (string, bool, error) { return "", false, nil }
	op := func(change func(*once.Operation[string])) once.Work[string] {
		o := &once.Operation[string]{Name: "op", OnUnknown: once.Park}
		change(o)
		return o.For("1")
	}
	for name, work := range map[string]once.Work[string]{
		"zero work":         {},
		"empty id":          parked.For(""),
		"long id":           parked.For(strings.Repeat("x", 256)),
		"control byte":      parked.For("a\x00b"),
		"bad scope":         parked.For("1").In("\n"),
		"bad parent":        parked.Under(once.Key{Operation: "pay"}),
		"no name":           op(func(o *once.Operation[string]) { o.Name = "" }),
		"slash":             op(func(o *once.Operation[string]) { o.Name = "a/b" }),
		"no choice":         op(func(o *once.Operation[string]) { o.OnUnknown = 0 }),
		"two choices":       op(func(o *once.Operation[string]) { o.Lookup = lookup }),
		"no such choice":    op(func(o *once.Operation[string]) { o.OnUnknown = 3 }),
		"negative lease":    op(func(o *once.Operation[string]) { o.Policy.Lease = -1 }),
		"tiny lease":        op(func(o *once.Operation[string]) { o.Policy.Lease = time.Millisecond }),
		"negative wait":     op(func(o *once.Operation[string]) { o.Policy.Wait = -2 }),
		"negative keep":     op(func(o *once.Operation[string]) { o.Policy.KeepOutcome = -1 }),
		"key before answer": op(func(o *once.Operation[string]) { o.Policy.KeepKey = time.Hour }),
		"negative settle":   op(func(o *once.Operation[string]) { o.SettleTime = -1 }),
		"negative validity": op(func(o *once.Operation[string]) { o.KeyValidFor = -1 }),
	} {
		c := counter{}
		s := &hooks{Store: memstore.New(nil), claim: func(context.Context, once.ClaimRequest, claimFunc) (once.Record, error) {
			t.Errorf("%s: claimed", name)
			return once.Record{}, errCause
		}}
		_, err := once.Do(testCtx, s, work, c.run("", nil))
		wantErr(t, err, once.ErrInvalid)
		c.ran(t, 0)
	}
	_, err := once.Do(testCtx, nil, parked.For("1"), (&counter{}).run("", nil))
	wantErr(t, err, once.ErrInvalid)
	_, err = once.Do[string](testCtx, memstore.New(nil), parked.For("1"), nil)
	wantErr(t, err, once.ErrInvalid)
	_, err = once.Do(testCtx, &hooks{Store: memstore.New(nil), options: &once.Options{}}, parked.For("1"), (&counter{}).run("", nil))
	wantErr(t, err, once.ErrInvalid)
}

func TestDoWithACancelledContextChangesNothing(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	ctx, cancel := context.WithCancel(testCtx)
	cancel()
	_, err := once.Do(ctx, s, parked.For("1"), c.run("", nil))
	wantErr(t, err, context.Canceled)
	c.ran(t, 0)
	if rec := get(t, s, parked.For("1").Key()); rec.Attempt != 0 {
		t.Errorf("%+v", rec)
	}
}

func TestDoOnAClosedStore(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	s.Close()
	_, err := once.Do(testCtx, s, parked.For("1"), c.run("", nil))
	wantErr(t, err, once.ErrClosed)
	c.ran(t, 0)
}

func TestDoMismatch(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	work := parked.For("1")
	if _, err := once.Do(testCtx, s, work.Input([]byte("a")), c.run("x", nil)); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]once.Work[string]{
		"other": work.Input([]byte("b")), "empty": work.Input(nil), "looked at first": work.Input([]byte("b")).Redelivered(),
	} {
		var how once.Report
		_, err := once.Do(testCtx, s, w.Report(&how), c.run("", nil))
		if !errors.Is(err, once.ErrMismatch) || how.Replayed {
			t.Errorf("%s: %v, %+v", name, err, how)
		}
	}
	for name, w := range map[string]once.Work[string]{
		"same": work.Input([]byte("a")), "none": work, "redelivered": work.Input([]byte("a")).Redelivered(),
	} {
		if got, err := once.Do(testCtx, s, w, c.run("", nil)); got != "x" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	c.ran(t, 1)
}

// A duplicate with another input does not wait for the first call, and does not
// get its answer.
func TestDoMismatchWhileRunning(t *testing.T) {
	s := memstore.New(nil)
	running, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(end)
	wg.Add(1)
	go func() {
		defer wg.Done()
		_, err := once.Do(testCtx, s, parked.For("1").Input([]byte("a")), func(context.Context, once.Key) (string, error) {
			close(running)
			<-end
			return "", nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-running
	_, err := once.Do(testCtx, s, parked.For("1").Input([]byte("b")), (&counter{}).run("", nil))
	wantErr(t, err, once.ErrMismatch)
}

func TestFingerprintsAreKeyedWithTheSecret(t *testing.T) {
	prints := map[string]bool{}
	for _, secret := range []string{"", "one", "two"} {
		s := memstore.New(&memstore.Options{Options: once.Options{Secret: []byte(secret)}})
		for _, id := range []string{"1", "2"} { // the same input does not show across keys either
			if _, err := once.Do(testCtx, s, parked.For(id).Input([]byte("a")), (&counter{}).run("", nil)); err != nil {
				t.Fatal(err)
			}
			prints[string(get(t, s, parked.For(id).Key()).Fingerprint)] = true
		}
	}
	if len(prints) != 6 {
		t.Errorf("%d different fingerprints, want 6", len(prints))
	}
}

func TestDoRace(t *testing.T) {
	for _, n := range []int{1, 4} { // duplicates in one process, and spread over four
		_, ps := processes(n)
		c := counter{}
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				got, err := once.Do(testCtx, ps[i%n], parked.For("1"), c.run("answer", nil))
				if got != "answer" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			}()
		}
		wg.Wait()
		c.ran(t, 1)
	}
}

func TestDuplicatesInAProcessHoldNoConnection(t *testing.T) {
	var calls atomic.Int64
	running, end := make(chan struct{}), make(chan struct{})
	s := &hooks{Store: memstore.New(nil), claim: func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		calls.Add(1)
		return claim(ctx, r)
	}}
	c := counter{}
	var wg sync.WaitGroup
	do := func(run func(context.Context, once.Key) (string, error)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if got, err := once.Do(testCtx, s, parked.For("1"), run); got != "first" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}()
	}
	do(func(context.Context, once.Key) (string, error) {
		close(running)
		<-end
		return "first", nil
	})
	<-running
	for range 63 {
		do(c.run("second", nil))
	}
	close(end)
	wg.Wait()
	c.ran(t, 0)
	if n := calls.Load(); n > 64 { // those that came after the end claim for themselves
		t.Errorf("%d claims", n)
	}
}

func TestDuplicateInFlight(t *testing.T) {
	_, ps := processes(2)
	for name, other := range map[string]*hooks{"same process": ps[0], "another process": ps[1]} {
		t.Run(name, func(t *testing.T) {
			brief := &once.Operation[string]{Name: "brief", OnUnknown: once.Park, Policy: once.Policy{Wait: time.Millisecond, Lease: time.Minute}}
			for _, op := range []*once.Operation[string]{refusing, brief} {
				running, end := make(chan struct{}), make(chan struct{})
				var wg sync.WaitGroup
				wg.Add(1)
				go func() {
					defer wg.Done()
					_, err := once.Do(testCtx, ps[0], op.For(name), func(context.Context, once.Key) (string, error) {
						close(running)
						<-end
						return "", nil
					})
					if err != nil {
						t.Error(err)
					}
				}()
				<-running
				c := counter{}
				_, err := once.Do(testCtx, other, op.For(name), c.run("", nil))
				wantErr(t, err, once.ErrInProgress)
				if after, ok := once.MayRetry(err); !ok || after < 10*time.Second || after > time.Minute {
					t.Errorf("retry after %v %v: want what is left of the lease", after, ok)
				}
				c.ran(t, 0)

				ctx, cancel := context.WithCancel(testCtx)
				cancel()
				_, err = once.Do(ctx, other, parked.For("other"), c.run("", nil))
				wantErr(t, err, context.Canceled)
				close(end)
				wg.Wait()
			}
		})
	}
}

// Two concurrent replays both get the answer.
func TestRefuseDoesNotRefuseAReplay(t *testing.T) {
	s, c := &hooks{Store: memstore.New(nil)}, counter{}
	if _, err := once.Do(testCtx, s, refusing.For("1"), c.run("x", nil)); err != nil {
		t.Fatal(err)
	}
	nested := false
	s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
		if !nested {
			nested = true
			if got, err := once.Do(testCtx, s, refusing.For("1"), c.run("", nil)); got != "x" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		return claim(ctx, r)
	}
	if got, err := once.Do(testCtx, s, refusing.For("1"), c.run("", nil)); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	c.ran(t, 1)
}

func TestJoinersStopWaitingWithTheirContext(t *testing.T) {
	_, ps := processes(2)
	running, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(end)
	wg.Add(1)
	go func() {
		defer wg.Done()
		_, _ = once.Do(testCtx, ps[0], parked.For("1"), func(context.Context, once.Key) (string, error) {
			close(running)
			<-end
			return "", nil
		})
	}()
	<-running
	for _, s := range ps {
		ctx, cancel := context.WithTimeout(testCtx, time.Millisecond)
		_, err := once.Do(ctx, s, parked.For("1"), (&counter{}).run("", nil))
		cancel()
		wantErr(t, err, context.DeadlineExceeded)
	}
}

// If the first call of a flight fails without an outcome, one of those who
// joined it takes over.
func TestJoinersTakeOverFromAFailedFirst(t *testing.T) {
	s := memstore.New(nil)
	running, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		_, err := once.Do(testCtx, s, parked.For("1"), func(context.Context, once.Key) (string, error) {
			close(running)
			<-end
			return "", once.NotDone(errCause)
		})
		wantErr(t, err, errCause)
	}()
	<-running
	c := counter{}
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if got, err := once.Do(testCtx, s, parked.For("1"), c.run("second", nil)); got != "second" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}()
	}
	close(end)
	wg.Wait()
	c.ran(t, 1)
}

func TestOutcomeOverTheLimitIsDoneAndNotKept(t *testing.T) {
	s := memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 10}})
	c := counter{}
	long := strings.Repeat("x", 11)
	if got, err := once.Do(testCtx, s, parked.For("1"), c.run(long, nil)); got != long || err != nil {
		t.Errorf("first: %q, %v", got, err)
	}
	_, err := once.Do(testCtx, s, parked.For("1"), c.run("", nil))
	wantErr(t, err, once.ErrOutcomeUnavailable)
	c.ran(t, 1)
}

func TestOutcomeOverTheLimitIsNotReplayedAsAnEmptyOne(t *testing.T) {
	s := memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 1}})
	op := &once.Operation[once.Outcome]{Name: "raw", OnUnknown: once.Park}
	for i, no := range []error{nil, once.ErrRejected} {
		for range 2 {
			_, _ = once.Do(testCtx, s, op.For(fmt.Sprint(i)), func(context.Context, once.Key) (once.Outcome, error) {
				return once.Outcome{Body: []byte("xx")}, no
			})
		}
		_, err := once.Do(testCtx, s, op.For(fmt.Sprint(i)), never[once.Outcome](t))
		wantErr(t, err, once.ErrOutcomeUnavailable)
		if errors.Is(err, once.ErrRejected) != (no != nil) {
			t.Errorf("rejected %v: %v", no != nil, err)
		}
	}
}

func TestOutcomeThatCannotBeEncodedIsDone(t *testing.T) {
	s := memstore.New(nil)
	op := &once.Operation[func()]{Name: "func", OnUnknown: once.Park}
	work := func(context.Context, once.Key) (func(), error) { return func() {}, nil }
	value, err := once.Do(testCtx, s, op.For("1"), work)
	if _, again := once.MayRetry(err); value == nil || err == nil || again || errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("the call that did it got %v", err)
	}
	_, err = once.Do(testCtx, s, op.For("1"), work)
	wantErr(t, err, once.ErrOutcomeUnavailable)
	wantStatus(t, s, op.For("1").Key(), once.Done)
}

func TestOutcomeOfAnotherTypeIsNotRunAgain(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	if _, err := once.Do(testCtx, s, parked.For("1"), c.run("text", nil)); err != nil {
		t.Fatal(err)
	}
	number := &once.Operation[int]{Name: parked.Name, OnUnknown: once.Park}
	_, err := once.Do(testCtx, s, number.For("1"), func(context.Context, once.Key) (int, error) { t.Error("ran"); return 0, nil })
	wantErr(t, err, once.ErrOutcomeUnavailable)
}

func TestDamagedOutcomeIsNeverReplayed(t *testing.T) {
	s := memstore.New(nil)
	w := parked.For("1")
	rec, err := s.Claim(testCtx, once.ClaimRequest{Fence: once.Fence{Key: w.Key(), Owner: [16]byte{1}}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := parked.Outcome("answer") // without the checksum that a settlement gets
	err = s.Settle(testCtx, once.Settlement{Fence: once.Fence{Key: w.Key(), Owner: rec.Owner, Attempt: rec.Attempt},
		Status: once.Done, Outcome: out, KeepOutcome: time.Hour, KeepKey: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := counter{}
	_, err = once.Do(testCtx, s, w, c.run("", nil))
	wantErr(t, err, once.ErrCorrupt)
	c.ran(t, 0)
}

func TestRetentionHasTwoStages(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	op := &once.Operation[string]{Name: "short", OnUnknown: once.Park, Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Hour}}
	if _, err := once.Do(testCtx, s, op.For("1").Input([]byte("a")), c.run("", nil)); err != nil {
		t.Fatal(err)
	}
	for get(t, s, op.For("1").Key()).Status == once.Done {
		runtime.Gosched()
	}
	_, err := once.Do(testCtx, s, op.For("1").Input([]byte("a")), c.run("", nil))
	wantErr(t, err, once.ErrExpired)
	_, err = once.Do(testCtx, s, op.For("1").Input([]byte("b")), c.run("", nil))
	wantErr(t, err, once.ErrMismatch)
	c.ran(t, 1)
}

func TestStepsAreSkippedWhenDone(t *testing.T) {
	s, charge, mail := memstore.New(nil), counter{}, counter{}
	order := (&once.Operation[string]{Name: "pay", OnUnknown: once.Resend}).For("o1")
	handle := func(fail error) error {
		if _, err := once.Do(testCtx, s, parked.Under(order.Key()), charge.run("charged", nil)); err != nil {
			return err
		}
		_, err := once.Do(testCtx, s, resent.Under(order.Key()), mail.run("sent", fail))
		return err
	}
	wantErr(t, handle(once.NotDone(errNet)), errNet)
	if err := handle(nil); err != nil {
		t.Fatal(err)
	}
	charge.ran(t, 1)
	mail.ran(t, 2)
}
