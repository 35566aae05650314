package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

var (
	background = context.Background()
	errLost    = errors.New("lost")
)

func request(id string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "op", ID: id}, Owner: [16]byte{1}}, Lease: time.Hour}
}

func settlement(rec once.Record, body string) once.Settlement {
	return once.Settlement{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done,
		Outcome: once.Outcome{Body: []byte(body)}, KeepOutcome: time.Hour, KeepKey: time.Hour}
}

func wantRecord(t *testing.T, s once.Store, k once.Key, want once.Status) once.Record {
	t.Helper()
	rec, err := s.Get(background, k)
	if err != nil || rec.Status != want {
		t.Errorf("the record is %v (%v), want %v", rec.Status, err, want)
	}
	return rec
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func TestFaultyWithoutFaults(t *testing.T) {
	pass(t, func() []storetest.Case {
		h := buggy("")
		open := h.Open
		h.Open = func(tb testing.TB) once.TxStore[*buggyTx] {
			return storetest.FaultyTx(open(tb), func(storetest.Call) storetest.Fault { return storetest.Fault{} })
		}
		return storetest.TxCases(t, h)
	})
}

func TestRequestLost(t *testing.T) {
	s := memstore.New(nil)
	f := storetest.Faulty(s, storetest.On("Claim", 2, storetest.Fault{Request: errLost}))
	for i, id := range []string{"1", "2", "3"} {
		_, err := f.Claim(background, request(id))
		if lost := i == 1; lost != errors.Is(err, errLost) {
			t.Errorf("claim %d: %v", i+1, err)
		}
	}
	wantRecord(t, s, request("1").Key, once.Running)
	wantRecord(t, s, request("2").Key, once.Absent)
	wantRecord(t, s, request("3").Key, once.Running)
}

func TestReplyLost(t *testing.T) {
	s := memstore.New(nil)
	f := storetest.Faulty(s, storetest.On("Claim", 0, storetest.Fault{Reply: errLost}))
	for range 2 {
		rec, err := f.Claim(background, request("1"))
		wantError(t, err, errLost)
		if rec.Attempt != 0 {
			t.Errorf("a reply that was lost said %+v", rec)
		}
	}
	wantRecord(t, s, request("1").Key, once.Running)
}

// The plan gets each call with the name of its method, its number and its key.
func TestCallsArePlannedByName(t *testing.T) {
	var calls []string
	s := memstore.New(nil)
	f := storetest.FaultyTx(s, func(c storetest.Call) storetest.Fault {
		calls = append(calls, fmt.Sprint(c.Method, " ", c.N, " ", c.Key.ID))
		return storetest.Fault{Request: errLost}
	})
	lister, ok := once.As[once.Lister](f)
	if !ok {
		t.Fatal("no lister")
	}
	r, fence := request("1"), request("2").Fence
	for _, call := range []func() error{
		func() error { _, err := f.Claim(background, r); return err },
		func() error { return f.Extend(background, fence, time.Hour) },
		func() error { return f.Settle(background, once.Settlement{Fence: fence}) },
		func() error { _, err := f.Get(background, r.Key); return err },
		func() error { _, err := f.Forget(background, 1); return err },
		func() error { _, err := lister.List(background, once.RecordQuery{}); return err },
		func() error { _, err := f.Transact(background, []once.ClaimRequest{r}, nil); return err },
		func() error { _, err := f.ClaimTx(background, s.Begin(), []once.ClaimRequest{r}); return err },
		func() error { return f.SettleTx(background, s.Begin(), []once.Settlement{{Fence: fence}}) },
		func() error { _, err := f.Get(background, fence.Key); return err },
	} {
		wantError(t, call(), errLost)
	}
	want := "[Claim 1 1 Extend 1 2 Settle 1 2 Get 1 1 Forget 1  List 1  Transact 1 1 ClaimTx 1 1 SettleTx 1 2 Get 2 2]"
	if got := fmt.Sprint(calls); got != want {
		t.Errorf("planned %s\nwant    %s", got, want)
	}
}

func TestLateSettle(t *testing.T) {
	s, late := memstore.New(nil), make(chan struct{})
	f := storetest.Faulty(s, storetest.On("Settle", 1, storetest.Fault{Late: late}))
	rec, err := f.Claim(background, request("1"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	set := settlement(rec, "answer")
	wantError(t, f.Settle(ctx, set), once.ErrOutcomeUnknown)
	cancel()
	copy(set.Outcome.Body, "change") // it belongs to the caller again
	wantRecord(t, s, rec.Key, once.Running)
	close(late)
	f.Wait()
	if rec := wantRecord(t, s, rec.Key, once.Done); string(rec.Outcome.Body) != "answer" {
		t.Errorf("settled as %q", rec.Outcome.Body)
	}
}

func TestSlow(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			fault storetest.Fault
			after once.Status
		}{
			"before": {storetest.Fault{Before: time.Hour}, once.Absent},
			"after":  {storetest.Fault{After: time.Hour}, once.Running},
		} {
			s := memstore.New(nil)
			ctx, cancel := context.WithTimeout(background, time.Second)
			_, err := storetest.Faulty(s, storetest.On("Claim", 1, c.fault)).Claim(ctx, request(name))
			cancel()
			wantError(t, err, context.DeadlineExceeded)
			wantRecord(t, s, request(name).Key, c.after)
		}
		s := storetest.Faulty(memstore.New(nil), storetest.On("Claim", 1, storetest.Fault{Before: time.Millisecond, After: time.Millisecond}))
		begun := time.Now()
		if _, err := s.Claim(background, request("1")); err != nil || time.Since(begun) < 2*time.Millisecond {
			t.Errorf("a slow claim took %v: %v", time.Since(begun), err)
		}
	})
}

func TestFaultsCompose(t *testing.T) {
	s := memstore.New(nil)
	outer := errors.New("outer")
	inner := storetest.Faulty(s, storetest.On("Claim", 1, storetest.Fault{Request: errLost}))
	f := storetest.Faulty(inner, storetest.On("Claim", 2, storetest.Fault{Reply: outer}))
	for i, want := range []error{errLost, outer, nil} {
		if _, err := f.Claim(background, request("1")); !errors.Is(err, want) {
			t.Errorf("claim %d: %v, want %v", i+1, err, want)
		}
	}
	if f.Options() != s.Options() {
		t.Error("the options are not those of the store")
	}
}

func TestFaultyHasNoListerIfItsStoreHasNone(t *testing.T) {
	f := storetest.Faulty(struct{ once.Store }{memstore.New(nil)}, storetest.On("", 0, storetest.Fault{}))
	if _, ok := once.As[once.Lister](f); ok {
		t.Error("it has one")
	}
}

type txBody = func(*memstore.Tx, []once.Record) ([]once.Settlement, error)

func writing(t *testing.T, fails error) txBody {
	return func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		if len(recs) != 1 {
			t.Errorf("the body got %d records", len(recs))
		}
		tx.Set("row", "1")
		return []once.Settlement{settlement(recs[0], "answer")}, fails
	}
}

func wantRow(t *testing.T, s *memstore.Store, want bool) {
	t.Helper()
	if _, ok := s.Value("row"); ok != want {
		t.Errorf("the row is there: %v, want %v", ok, want)
	}
}

func TestTransactGoesWrong(t *testing.T) {
	for name, c := range map[string]struct {
		fault storetest.Fault
		err   error
		there bool
	}{
		"nothing":      {storetest.Fault{}, nil, true},
		"request lost": {storetest.Fault{Request: errLost}, errLost, false},
		"reply lost":   {storetest.Fault{Reply: once.ErrOutcomeUnknown}, once.ErrOutcomeUnknown, true},
		"undone":       {storetest.Fault{Undo: once.ErrConflict}, once.ErrConflict, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New(nil)
			f := storetest.FaultyTx(s, storetest.On("Transact", 1, c.fault))
			_, err := f.Transact(background, []once.ClaimRequest{request("1")}, writing(t, nil))
			wantError(t, err, c.err)
			wantRow(t, s, c.there)
			wantRecord(t, s, request("1").Key, map[bool]once.Status{true: once.Done, false: once.Absent}[c.there])
		})
	}
}

func TestLateCommit(t *testing.T) {
	s, late := memstore.New(nil), make(chan struct{})
	f := storetest.FaultyTx(s, storetest.On("Transact", 1, storetest.Fault{Late: late, Reply: errLost}))
	set := settlement(once.Record{}, "answer")
	ctx, cancel := context.WithCancel(background)
	_, err := f.Transact(ctx, []once.ClaimRequest{request("1")}, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		set.Fence = settlement(recs[0], "").Fence
		return []once.Settlement{set}, nil
	})
	wantError(t, err, errLost)
	cancel()
	copy(set.Outcome.Body, "change")
	wantRecord(t, s, request("1").Key, once.Absent)
	rec, err := f.Claim(background, once.ClaimRequest{Fence: once.Fence{Key: request("1").Key, Owner: [16]byte{2}}})
	if err != nil || rec.Status != once.Running || rec.LeaseLeft != 0 {
		t.Errorf("beside a transaction whose commit is late: %v, %v", rec, err)
	}
	close(late)
	f.Wait()
	if rec := wantRecord(t, s, request("1").Key, once.Done); string(rec.Outcome.Body) != "answer" {
		t.Errorf("settled as %q", rec.Outcome.Body)
	}
}

// A transaction with nothing to commit cannot be late or undone.
func TestNothingToCommit(t *testing.T) {
	late := make(chan struct{})
	for name, fault := range map[string]storetest.Fault{"late": {Late: late}, "undone": {Undo: once.ErrConflict}} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New(nil)
			f := storetest.FaultyTx(s, storetest.On("Transact", 0, fault))
			_, err := f.Transact(background, []once.ClaimRequest{request("1")}, writing(t, errLost))
			wantError(t, err, errLost)
			func() {
				defer func() {
					if r := recover(); r != "boom" {
						t.Errorf("recovered %v", r)
					}
				}()
				_, _ = f.Transact(background, []once.ClaimRequest{request("1")}, func(*memstore.Tx, []once.Record) ([]once.Settlement, error) { panic("boom") })
			}()
			wantRow(t, s, false)
			if _, err := s.Claim(background, request("1")); err != nil {
				t.Fatal(err)
			}
			rival := request("1")
			rival.Owner = [16]byte{2}
			recs, err := f.Transact(background, []once.ClaimRequest{rival}, nil)
			if err != nil || len(recs) != 1 || recs[0].Status != once.Running {
				t.Errorf("a lost claim: %v, %v", recs, err)
			}
		})
	}
}

// A body that ends its goroutine ends that of its caller, as without the
// wrapper.
func TestLateCommitOfABodyThatEndsItsGoroutine(t *testing.T) {
	s, ended := memstore.New(nil), make(chan bool, 1)
	f := storetest.FaultyTx(s, storetest.On("Transact", 1, storetest.Fault{Late: make(chan struct{})}))
	go func() {
		returned := false
		defer func() { ended <- !returned }()
		_, _ = f.Transact(background, []once.ClaimRequest{request("1")}, func(*memstore.Tx, []once.Record) ([]once.Settlement, error) {
			runtime.Goexit()
			return nil, nil
		})
		returned = true
	}()
	if !<-ended {
		t.Error("Transact returned")
	}
	wantRecord(t, s, request("1").Key, once.Absent)
}
