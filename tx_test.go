package once_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

func (c *counter) write(name, value string, err error) func(context.Context, *memstore.Tx) (string, error) {
	return func(_ context.Context, tx *memstore.Tx) (string, error) {
		tx.Set(name, fmt.Sprint(c.n.Add(1)))
		return value, err
	}
}

func wantValue(t *testing.T, s interface{ Value(string) (string, bool) }, name, want string) {
	t.Helper()
	if got, _ := s.Value(name); got != want {
		t.Errorf("%s is %q, want %q", name, got, want)
	}
}

func TestDoTxRunsOnceAndReplays(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	for i := range 3 {
		var how once.Report
		got, err := once.DoTx(testCtx, s, inTx.For("1").Report(&how), c.write("row", "answer", nil))
		if got != "answer" || err != nil || how != (once.Report{Replayed: i > 0, Attempt: 1}) {
			t.Errorf("call %d: %q, %v, %+v", i, got, err, how)
		}
	}
	wantValue(t, s, "row", "1")
}

func TestDoTxFailureLeavesNothingBehind(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", errCause))
	wantErr(t, err, errCause)
	func() {
		defer func() { _ = recover() }()
		_, _ = once.DoTx(testCtx, s, inTx.For("1"), func(_ context.Context, tx *memstore.Tx) (string, error) {
			tx.Set("row", "panic")
			panic("boom")
		})
	}()
	wantValue(t, s, "row", "")
	if rec := get(t, s, inTx.For("1").Key()); rec.Attempt != 0 {
		t.Errorf("left behind: %+v", rec)
	}
	if _, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", nil)); err != nil {
		t.Error(err)
	}
}

func TestDoTxRejectionRollsBackAndIsRemembered(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	no := fmt.Errorf("sold out: %w", once.ErrRejected)
	got, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "none left", no))
	if got != "none left" || err != no {
		t.Errorf("first: %q, %v", got, err)
	}
	got, err = once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", nil))
	if got != "none left" || !errors.Is(err, once.ErrRejected) {
		t.Errorf("replay: %q, %v", got, err)
	}
	wantValue(t, s, "row", "")
	c.ran(t, 1)
}

// Work that is both rejected and NotDone has no answer, as in Do.
func TestDoTxRejectionThatIsNotDone(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", once.NotDone(once.ErrRejected)))
	wantErr(t, err, once.ErrRejected)
	if rec := get(t, s, inTx.For("1").Key()); rec.Status != once.Absent {
		t.Errorf("recorded: %+v", rec)
	}
	wantValue(t, s, "row", "")
}

// While the rejected transaction is rolled back, another attempt wins. All
// callers get its answer.
func TestDoTxRejectionLosesToAnAnswer(t *testing.T) {
	shared, ps := processes(2)
	calls := 0
	ps[0].transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
		if calls++; calls == 2 {
			if _, err := once.DoTx(testCtx, ps[1], inTx.For("1"), (&counter{}).write("row", "yes", nil)); err != nil {
				t.Error(err)
			}
		}
		return transact(ctx, rs, body)
	}
	got, err := once.DoTx(testCtx, ps[0], inTx.For("1"), (&counter{}).write("row", "no", once.ErrRejected))
	if got != "yes" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	wantValue(t, shared, "row", "1")
}

func TestDoTxOutcomeTooLargeRollsBack(t *testing.T) {
	s, c := memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 10}}), counter{}
	_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", strings.Repeat("x", 11), nil))
	wantErr(t, err, once.ErrOutcomeTooLarge)
	funcs := &once.Operation[func()]{Name: "func"}
	_, err = once.DoTx(testCtx, s, funcs.For("1"), func(_ context.Context, tx *memstore.Tx) (func(), error) {
		tx.Set("row", "x")
		return func() {}, nil
	})
	if _, again := once.MayRetry(err); err == nil || again {
		t.Errorf("encoded a function: %v", err)
	}
	wantValue(t, s, "row", "")
}

func TestInsideATransaction(t *testing.T) {
	s := memstore.New(nil)
	_, err := once.DoTx(testCtx, s, inTx.For("1"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		_, err := once.Do(ctx, s, parked.For("1"), (&counter{}).run("", nil))
		wantErr(t, err, once.ErrInTx)
		_, err = once.DoTx(ctx, s, inTx.For("2"), (&counter{}).write("row", "", nil))
		wantErr(t, err, once.ErrInTx)
		if claim, _ := once.ClaimFrom(ctx); claim.Attempt != 1 || claim.Key.ID != "1" {
			t.Errorf("claim %+v", claim)
		}
		return once.InTx(ctx, s, tx, inTx.For("3"), func(context.Context) (string, error) { return "nested", nil })
	})
	if err != nil {
		t.Error(err)
	}
	wantStatus(t, s, inTx.For("3").Key(), once.Done)
}

func TestDoTxRepeatsAConflict(t *testing.T) {
	for _, inBody := range []bool{false, true} {
		c, calls := counter{}, 0
		s := &hooks{Store: memstore.New(nil)}
		s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
			if calls++; calls <= 3 && !inBody {
				return nil, fmt.Errorf("deadlock: %w", once.ErrConflict)
			}
			return transact(ctx, rs, body)
		}
		_, err := once.DoTx(testCtx, s, inTx.For("1"), func(_ context.Context, tx *memstore.Tx) (string, error) {
			if c.n.Add(1) <= 3 && inBody {
				tx.Set("row", "half")
				return "", fmt.Errorf("deadlock: %w", once.ErrConflict)
			}
			tx.Set("row", "whole")
			return "", nil
		})
		if err != nil {
			t.Error(err)
		}
		wantValue(t, s, "row", "whole")
	}
}

// A run that was rolled back has no value.
func TestDoTxInterruptedBeforeItRepeats(t *testing.T) {
	ctx, cancel := context.WithCancel(testCtx)
	defer cancel()
	s := &hooks{Store: memstore.New(nil)}
	calls := 0
	s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
		if calls++; calls == 2 {
			cancel()
			ctx = context.WithoutCancel(ctx) // the store has not noticed
		}
		recs, err := transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := body(tx, recs)
			if calls == 1 && err == nil {
				err = once.ErrConflict
			}
			return sets, err
		})
		return recs, err
	}
	got, err := once.DoTx(ctx, s, inTx.For("1"), func(context.Context, *memstore.Tx) (string, error) { return "charged", nil })
	if got != "" || !errors.Is(err, context.Canceled) || calls != 2 {
		t.Errorf("after %d transactions: %q, %v", calls, got, err)
	}
}

func TestDoTxStoreDown(t *testing.T) {
	s := &hooks{Store: memstore.New(nil)}
	s.transact = func(context.Context, []once.ClaimRequest, bodyFunc, transactFunc) ([]once.Record, error) {
		return nil, errNet
	}
	c := counter{}
	_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", nil))
	wantErr(t, err, errNet)
	if errors.Is(err, once.ErrOutcomeUnknown) {
		t.Error("nothing was begun, so nothing is unknown")
	}
	c.ran(t, 0)
}

// lostCommit makes the first n commits end in an error, applied or not.
func lostCommit(s *hooks, n int, applied bool) {
	s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
		if n == 0 {
			return transact(ctx, rs, body)
		}
		n--
		unapplied := errors.New("cut")
		recs, err := transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := body(tx, recs)
			if err == nil && !applied {
				err = unapplied
			}
			return sets, err
		})
		if err == nil || errors.Is(err, unapplied) {
			return nil, fmt.Errorf("commit: %w: %w", errNet, once.ErrOutcomeUnknown)
		}
		return recs, err
	}
}

func TestCommitReplyLost(t *testing.T) {
	s, c := &hooks{Store: memstore.New(nil)}, counter{}
	lostCommit(s, 1, true)
	how := once.Report{}
	got, err := once.DoTx(testCtx, s, inTx.For("1").Report(&how), c.write("row", "answer", nil))
	if got != "answer" || err != nil || how != (once.Report{Attempt: 1}) {
		t.Errorf("%q, %v, %+v", got, err, how)
	}
	wantValue(t, s, "row", "1")
	c.ran(t, 1)
}

func TestCommitRequestLost(t *testing.T) {
	s, c := &hooks{Store: memstore.New(nil)}, counter{}
	lostCommit(s, 1, false)
	got, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "answer", nil))
	if got != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	wantValue(t, s, "row", "2")
	c.ran(t, 2)
}

func TestCommitReplyLostWhileTheCallerLeaves(t *testing.T) {
	for _, applied := range []bool{true, false} {
		s, c := &hooks{Store: memstore.New(nil)}, counter{}
		lostCommit(s, 1, applied)
		ctx, cancel := context.WithCancel(testCtx)
		_, err := once.DoTx(ctx, s, inTx.For("1"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
			defer cancel()
			return c.write("row", "", nil)(ctx, tx)
		})
		if applied && err != nil || !applied && !errors.Is(err, context.Canceled) {
			t.Errorf("applied %v: %v", applied, err)
		}
		if errors.Is(err, once.ErrOutcomeUnknown) {
			t.Error("it was found out")
		}
		c.ran(t, 1)
	}
}

func TestCommitThatCannotBeFoundOutIsUnknown(t *testing.T) {
	s, c := &hooks{Store: memstore.New(nil)}, counter{}
	lostCommit(s, 100, false)
	_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", nil))
	wantErr(t, err, once.ErrOutcomeUnknown, errNet)
}

// The store fails after the work and before COMMIT is sent: nothing is
// committed, and nothing is repeated.
func TestStoreFailsAfterTheWork(t *testing.T) {
	for _, commitsLost := range []int{0, 1} {
		s, c := &hooks{Store: memstore.New(nil)}, counter{}
		s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
			recs, err := transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
				_, err := body(tx, recs)
				return nil, errors.Join(err, errNet)
			})
			if commitsLost > 0 {
				commitsLost--
				return nil, once.ErrOutcomeUnknown
			}
			return recs, err
		}
		want := int64(commitsLost + 1)
		_, err := once.DoTx(testCtx, s, inTx.For("1"), c.write("row", "", nil))
		wantErr(t, err, errNet)
		if errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%v: the claim was free, so nothing is unknown", err)
		}
		wantValue(t, s, "row", "")
		c.ran(t, want)
	}
}

// A store's record of a claim whose body it did not call does not count as a
// commit.
func TestNothingIsDoneWithoutTheWork(t *testing.T) {
	for _, status := range []once.Status{once.Running, once.Unknown} {
		s := &hooks{Store: memstore.New(nil)}
		s.transact = func(_ context.Context, rs []once.ClaimRequest, _ bodyFunc, _ transactFunc) ([]once.Record, error) {
			return []once.Record{{Key: rs[0].Key, Status: status, Attempt: 1, Owner: rs[0].Owner}}, nil
		}
		op := &once.Operation[string]{Name: "tx", Policy: once.Policy{Wait: 20 * time.Millisecond}}
		if _, err := once.DoTx(testCtx, s, op.For("1"), (&counter{}).write("row", "", nil)); err == nil {
			t.Errorf("%v: done, and nothing was run", status)
		}
	}
}

// A commit that is still in flight is not a rival, whatever the policy for
// duplicates is.
func TestLateCommit(t *testing.T) {
	for _, op := range []*once.Operation[string]{inTx, refusing} {
		lateCommit(t, op)
	}
}

func lateCommit(t *testing.T, op *once.Operation[string]) {
	t.Helper()
	s, c := &hooks{Store: memstore.New(nil)}, counter{}
	calls := 0
	var commit func()
	s.transact = func(ctx context.Context, rs []once.ClaimRequest, body bodyFunc, transact transactFunc) ([]once.Record, error) {
		calls++
		switch calls {
		case 1: // the transaction stays open in the database
			tx := s.Store.Begin()
			recs, err := s.Store.ClaimTx(ctx, tx, rs)
			if err != nil {
				return nil, err
			}
			sets, err := body(tx, recs)
			if err != nil {
				return nil, err
			}
			if err := s.Store.SettleTx(ctx, tx, sets); err != nil {
				return nil, err
			}
			commit = func() { _ = tx.Commit() }
			return nil, once.ErrOutcomeUnknown
		case 4:
			commit()
		}
		return transact(ctx, rs, body)
	}
	got, err := once.DoTx(testCtx, s, op.For("1"), c.write("row", "answer", nil))
	if got != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	wantValue(t, s, "row", "1")
	c.ran(t, 1)
}

func TestDoTxRace(t *testing.T) {
	for _, n := range []int{1, 4} {
		shared, ps := processes(n)
		c := counter{}
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				got, err := once.DoTx(testCtx, ps[i%n], inTx.For("1"), c.write("row", "answer", nil))
				if got != "answer" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			}()
		}
		wg.Wait()
		wantValue(t, shared, "row", "1")
	}
}

func TestDoTxMeetsRecordsOfDo(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	crashed(t, s, inTx.For("unchosen").Key())
	_, err := once.DoTx(testCtx, s, inTx.For("unchosen"), c.write("row", "", nil))
	wantErr(t, err, once.ErrOutcomeUnknown)

	crashed(t, s, resent.For("1").Key())
	how := once.Report{}
	if _, err := once.DoTx(testCtx, s, resent.For("1").Report(&how), c.write("row", "", nil)); err != nil || how.Attempt != 2 {
		t.Errorf("%v, %+v", err, how)
	}
	crashed(t, s, parked.For("1").Key())
	_, err = once.DoTx(testCtx, s, parked.For("1"), c.write("row", "", nil))
	wantErr(t, err, once.ErrParked)
	c.ran(t, 1)
}

func TestDoTxMismatch(t *testing.T) {
	s, c := memstore.New(nil), counter{}
	if _, err := once.DoTx(testCtx, s, inTx.For("1").Input([]byte("a")), c.write("row", "", nil)); err != nil {
		t.Fatal(err)
	}
	_, err := once.DoTx(testCtx, s, inTx.For("1").Input([]byte("b")), c.write("row", "", nil))
	wantErr(t, err, once.ErrMismatch)
	c.ran(t, 1)
}

func TestInTx(t *testing.T) {
	s := memstore.New(nil)
	step := func(tx *memstore.Tx, err error) (string, error) {
		return once.InTx(testCtx, s, tx, inTx.For("1"), func(context.Context) (string, error) {
			tx.Set("row", "written")
			return "answer", err
		})
	}
	tx := s.Begin()
	if _, err := step(tx, nil); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	if rec := get(t, s, inTx.For("1").Key()); rec.Attempt != 0 {
		t.Errorf("rolled back, and still %+v", rec)
	}

	tx = s.Begin()
	if _, err := step(tx, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := step(tx, errCause); got != "answer" || err != nil { // a duplicate in the same transaction
		t.Errorf("%q, %v", got, err)
	}
	other := s.Begin()
	_, err := step(other, nil)
	wantErr(t, err, once.ErrInProgress)
	other.Rollback()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tx = s.Begin()
	if got, err := step(tx, errCause); got != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	tx.Rollback()
}

func TestInTxOfACallerWhoCommitsInSpiteOfAnError(t *testing.T) {
	for name, run := range map[string]func(context.Context) (string, error){
		"error": func(context.Context) (string, error) { return "", errCause },
		"panic": func(context.Context) (string, error) { panic("boom") },
		"large": func(context.Context) (string, error) { return strings.Repeat("x", 2<<20), nil },
	} {
		s := memstore.New(nil)
		tx := s.Begin()
		func() {
			defer func() { _ = recover() }()
			if _, err := once.InTx(testCtx, s, tx, inTx.For("1"), run); err == nil {
				t.Errorf("%s: no error", name)
			}
		}()
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s, inTx.For("1").Key(), once.Absent)
	}
}

func TestInTxRejectionIsRememberedByACommit(t *testing.T) {
	s := memstore.New(nil)
	tx := s.Begin()
	_, err := once.InTx(testCtx, s, tx, inTx.For("1"), func(context.Context) (string, error) { return "no", once.ErrRejected })
	wantErr(t, err, once.ErrRejected)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	got, err := once.DoTx(testCtx, s, inTx.For("1"), (&counter{}).write("row", "", nil))
	if got != "no" || !errors.Is(err, once.ErrRejected) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestInTxMeetsWhatItCannotWaitFor(t *testing.T) {
	s := memstore.New(nil)
	short := &once.Operation[string]{Name: "short", Policy: once.Policy{KeepOutcome: time.Nanosecond}}
	if _, err := once.DoTx(testCtx, s, short.For("1"), (&counter{}).write("row", "", nil)); err != nil {
		t.Fatal(err)
	}
	for get(t, s, short.For("1").Key()).Status == once.Done {
		runtime.Gosched()
	}
	crashed(t, s, parked.For("lapsed").Key())
	_, _ = once.Do(testCtx, s, parked.For("parked"), (&counter{}).run("", errCause))
	for work, want := range map[*once.Work[string]]error{
		ptr(short.For("1")): once.ErrExpired, ptr(parked.For("lapsed")): once.ErrOutcomeUnknown, ptr(parked.For("parked")): once.ErrParked,
	} {
		tx := s.Begin()
		_, err := once.InTx(testCtx, s, tx, *work, func(context.Context) (string, error) { t.Error("ran"); return "", nil })
		tx.Rollback()
		wantErr(t, err, want)
	}
}

func ptr[T any](v T) *T { return &v }
