package once_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

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

// A cause that is not the text of a key is ignored without an error.
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

// The second attempt had no effect, but the first may have happened: the key is
// not free, and it is parked when the other system has forgotten it.
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
		"waits for its claim": func(ctx context.Context, _ func(), s *hooks) error {
			calls := 0
			var first once.ClaimRequest
			s.claim = func(ctx context.Context, r once.ClaimRequest, claim claimFunc) (once.Record, error) {
				if r.Attempt == 0 && calls == 0 { // which finds the attempt before
					return claim(ctx, r)
				}
				switch calls++; {
				case calls == 1:
					first = r
					return once.Record{}, errNet
				case calls == 5: // and gives up repeating it
					if _, err := claim(ctx, first); err != nil {
						t.Error(err)
					}
				case calls > 5:
					return claim(ctx, r)
				}
				return once.Record{Key: r.Key, Status: once.Running}, nil
			}
			_, err := once.Do(ctx, s, valid.For("1"), (&counter{}).run("", once.NotDone(errNet)))
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
