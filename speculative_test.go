package once_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// hasty is a store that enters the body of a Speculative request before it claims, and rolls that back.
type hasty struct{ *memstore.Store }

func (s hasty) Transact(ctx context.Context, rs []once.ClaimRequest, body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	if r := rs[0]; r.Speculative {
		rec := once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease}
		r.Key.ID += ", in vain"
		_, _ = s.Store.Transact(ctx, []once.ClaimRequest{r}, func(tx *memstore.Tx, _ []once.Record) ([]once.Settlement, error) {
			_, _ = body(tx, []once.Record{rec})
			return nil, errors.New("the claim is not won")
		})
	}
	return s.Store.Transact(ctx, rs, body)
}

func TestOnlySpeculativeWorkIsEnteredBeforeItsClaim(t *testing.T) {
	for name, c := range map[string]struct {
		speculative, redelivered bool
		entered                  int // by a duplicate
	}{
		"default":                  {},
		"speculative":              {speculative: true, entered: 1},
		"speculative, redelivered": {speculative: true, redelivered: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, op := hasty{memstore.New(nil)}, &once.Operation[int]{Name: "pay", Speculative: c.speculative}
			w, entered := op.For("1"), 0
			if c.redelivered {
				w = w.Redelivered()
			}
			run := func(context.Context, *memstore.Tx) (int, error) { entered++; return entered, nil }
			first, err := once.DoTx(t.Context(), s, w, run)
			if err != nil {
				t.Fatal(err)
			}
			entered = 0
			if again, err := once.DoTx(t.Context(), s, w, run); again != first || err != nil || entered != c.entered {
				t.Errorf("got %d, %v, want %d; entered %d times, want %d", again, err, first, entered, c.entered)
			}
		})
	}
}

func TestAnAbruptEndOfASpeculativeRun(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		s, op := hasty{memstore.New(nil)}, &once.Operation[int]{Name: "pay", Speculative: true}
		call := func(id string, ends func(run int) bool) (value int, returned bool, recovered any, err error) {
			done, runs := make(chan struct{}), 0
			go func() {
				defer close(done)
				defer func() { recovered = recover() }()
				value, err = once.DoTx(t.Context(), s, op.For(id), func(context.Context, *memstore.Tx) (int, error) {
					if runs++; ends(runs) {
						end()
					}
					return 7, nil
				})
				returned = true
			}()
			<-done
			return value, returned, recovered, err
		}
		never, first, always := func(int) bool { return false }, func(run int) bool { return run == 1 }, func(int) bool { return true }
		if n, returned, _, err := call("new", first); n != 7 || err != nil || !returned {
			t.Errorf("%s before a claim that is won: %d, %v, returned %t", how, n, err, returned)
		}
		if n, returned, _, err := call("new", always); n != 7 || err != nil || !returned {
			t.Errorf("%s of a loser: %d, %v, returned %t", how, n, err, returned)
		}
		if _, returned, recovered, _ := call("winner", always); returned || (recovered == "boom") != (how == "panic") {
			t.Errorf("%s of a winner: returned %t, recovered %v", how, returned, recovered)
		}
		if n, _, _, err := call("winner", never); n != 7 || err != nil {
			t.Errorf("after the %s of a winner: %d, %v", how, n, err)
		}
	}
}
