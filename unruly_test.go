package once_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/errtree/errtreetest"
	"github.com/effectively-once/once/store/memstore"
)

// unrulyValue cannot be encoded, nor decoded.
type unrulyValue struct{}

func (unrulyValue) MarshalJSON() ([]byte, error) { panic("MarshalJSON") }
func (*unrulyValue) UnmarshalJSON([]byte) error  { panic("UnmarshalJSON") }

// However an error of a user misbehaves, its key ends as the work says.
func TestUnrulyErrorsOfWork(t *testing.T) {
	op := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend}
	for name, bad := range errtreetest.Unruly {
		for _, c := range []struct {
			mark string
			err  error
			want once.Status // after Do; a transaction is rolled back, but for a rejection
		}{
			{"alone", bad, once.Unknown},
			{"NotDone", once.NotDone(bad), once.Absent},
			{"RetryAfter", once.NotDone(once.RetryAfter(time.Minute, bad)), once.Absent},
			{"joined", errors.Join(bad, once.NotDone(io.EOF)), once.Absent},
			{"rejected", errors.Join(bad, once.ErrRejected), once.Done},
		} {
			t.Run(name+"/"+c.mark, func(t *testing.T) {
				s := memstore.New(nil)
				check := func(id string, err error, want once.Status) {
					t.Helper()
					rec, failed := s.Get(t.Context(), op.For(id).Key())
					if err == nil || err.Error() == "" || failed != nil || rec.Status != want {
						t.Errorf("%s: %v, and the record is %v, %v, want %v", id, err, rec.Status, failed, want)
					}
					once.MayRetry(err)
					once.IsDialError(err)
				}
				_, err := once.Do(t.Context(), s, op.For("Do"), func(context.Context, once.Key) (int, error) { return 1, c.err })
				check("Do", err, c.want)
				after := once.Absent
				if c.want == once.Done {
					after = once.Done
				}
				_, err = once.DoTx(t.Context(), s, op.For("DoTx"), func(context.Context, *memstore.Tx) (int, error) { return 1, c.err })
				check("DoTx", err, after)
				tx := s.Begin()
				_, err = once.InTx(t.Context(), s, tx, op.For("InTx"), func(context.Context) (int, error) { return 1, c.err })
				if failed := tx.Commit(); failed != nil {
					t.Error(failed)
				}
				check("InTx", err, after)
				if err := once.RunAll(t.Context(), func(context.Context) error { return c.err }); err == nil || err.Error() == "" {
					t.Errorf("RunAll returned %v", err)
				}
			})
		}
	}
}

// Work whose value cannot be encoded is done all the same, in a transaction
// nothing is.
func TestUnrulyValues(t *testing.T) {
	op, s := &once.Operation[unrulyValue]{Name: "charge", OnUnknown: once.Resend}, memstore.New(nil)
	_, err := once.Do(t.Context(), s, op.For("Do"), func(context.Context, once.Key) (v unrulyValue, err error) { return v, nil })
	if rec, _ := s.Get(t.Context(), op.For("Do").Key()); err == nil || rec.Status != once.Done || !rec.Outcome.Omitted {
		t.Errorf("%v, and the record is %v", err, rec.Status)
	}
	_, err = once.DoTx(t.Context(), s, op.For("DoTx"), func(context.Context, *memstore.Tx) (v unrulyValue, err error) { return v, nil })
	if rec, _ := s.Get(t.Context(), op.For("DoTx").Key()); err == nil || rec.Status != once.Absent {
		t.Errorf("%v, and the record is %v", err, rec.Status)
	}
	written := &once.Operation[int]{Name: "written", OnUnknown: once.Resend}
	read := &once.Operation[unrulyValue]{Name: "written", OnUnknown: once.Resend}
	if _, err := once.Do(t.Context(), s, written.For("1"), func(context.Context, once.Key) (int, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	_, err = once.Do(t.Context(), s, read.For("1"), func(context.Context, once.Key) (v unrulyValue, err error) { return v, nil })
	if !errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("got %v, want ErrOutcomeUnavailable", err)
	}
}

// A Lookup that does not return has no answer: its key stays unknown, and those
// who repeat the call get an error.
func TestUnrulyLookups(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic(once.NotDone(once.ErrRejected)) }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			s := memstore.New(&memstore.Options{Options: once.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
			bad := true
			op := &once.Operation[int]{Name: "charge", Lookup: func(context.Context, once.Key) (int, bool, error) {
				if bad {
					end()
				}
				return 7, true, nil
			}}
			w := op.For("1")
			fail := func(context.Context, once.Key) (int, error) { return 0, io.EOF }
			if _, err := once.Do(t.Context(), s, w, fail); !errors.Is(err, once.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			_, err := once.Do(t.Context(), s, w, fail)
			rec, _ := s.Get(t.Context(), w.Key())
			if !errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrRejected) || rec.Status != once.Unknown || rec.Attempt != 1 {
				t.Errorf("Do returned %v, and the record is %v after %d attempts", err, rec.Status, rec.Attempt)
			}
			if _, err = op.Ask(t.Context(), s, rec); !errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("Ask returned %v", err)
			}
			if !strings.Contains(log.String(), "function=Lookup") || !strings.Contains(log.String(), "TestUnrulyLookups") {
				t.Errorf("the log has no stack of Lookup:\n%s", log.String())
			}
			bad = false
			if value, err := once.Do(t.Context(), s, w, fail); value != 7 || err != nil {
				t.Errorf("Do returned %v, %v, although Lookup has an answer", value, err)
			}
		})
	}
}

// RunAll does not wait for a function that has ended its goroutine, and says so.
func TestRunAllReturnsIfAFunctionEndsItsGoroutine(t *testing.T) {
	others := make(chan struct{})
	err := once.RunAll(t.Context(), func(context.Context) error { runtime.Goexit(); return nil }, func(ctx context.Context) error {
		<-ctx.Done()
		close(others)
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "ended its goroutine") {
		t.Errorf("RunAll returned %v", err)
	}
	<-others
}
