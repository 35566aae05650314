package observe_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store/memstore"
)

var errNet = errors.New("connection reset")

// faulty is a store that fails where a test says so.
type faulty struct {
	*memstore.Store
	claim, settle, settleTx, transact error
	damaged, lapsed                   bool
	settled                           func() // after a settlement
}

func (f *faulty) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	rec, err := f.Store.Claim(ctx, r)
	if f.damaged {
		rec.Outcome.Sum++
	}
	return rec, errors.Join(err, f.claim)
}

func (f *faulty) Settle(ctx context.Context, s once.Settlement) error {
	if f.settle != nil {
		return f.settle
	}
	err := f.Store.Settle(ctx, s)
	if f.settled != nil {
		f.settled()
	}
	return err
}

func (f *faulty) ClaimTx(ctx context.Context, tx *memstore.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	recs, err := f.Store.ClaimTx(ctx, tx, rs)
	if f.lapsed && len(recs) == 1 { // while it waited for a transaction in flight
		recs[0].Status = once.Unknown
	}
	return recs, err
}

func (f *faulty) SettleTx(ctx context.Context, tx *memstore.Tx, ss []once.Settlement) error {
	if f.settleTx != nil {
		return f.settleTx
	}
	return f.Store.SettleTx(ctx, tx, ss)
}

func (f *faulty) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	if f.transact != nil {
		return nil, f.transact
	}
	return f.Store.Transact(ctx, rs, body)
}

// Each result is forced once, with each verb that has a way of its own to it.
func TestResults(t *testing.T) {
	seen := make(map[string]bool)
	ctx := context.Background()
	parks := &once.Operation[string]{Name: "parks", OnUnknown: once.Park}
	refuses := &once.Operation[string]{Name: "refuses", OnUnknown: once.Resend, Policy: once.Policy{Wait: once.NoWait}}
	brief := &once.Operation[string]{Name: "brief", OnUnknown: once.Resend, Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Hour}}
	do := func(f *faulty, ctx context.Context, w once.Work[string], value string, err error) {
		_, _ = once.Do(ctx, f, w, func(context.Context, once.Key) (string, error) { return value, err })
	}
	doTx := func(f *faulty, w once.Work[string], value string, err error) {
		_, _ = once.DoTx(ctx, f, w, func(context.Context, *memstore.Tx) (string, error) { return value, err })
	}
	inTx := func(f *faulty, w once.Work[string], value string, err error) {
		tx := f.Begin()
		_, _ = once.InTx(ctx, f, tx, w, func(context.Context) (string, error) { return value, err })
		_ = tx.Commit()
	}
	ask := func(f *faulty, op *once.Operation[string]) {
		rec, err := f.Store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: op.For("1").Key(), Owner: [16]byte{1}}, Lease: time.Nanosecond})
		for rec.Status == once.Running && err == nil {
			rec, err = f.Get(ctx, rec.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = op.Ask(ctx, f, rec)
	}
	looks := func(happened bool, err error) *once.Operation[string] {
		return &once.Operation[string]{Name: "looks", Lookup: func(context.Context, once.Key) (string, bool, error) { return "", happened, err }}
	}
	for _, c := range []struct {
		name, want string
		ran        bool
		act        func(f *faulty)
	}{
		{"Do", observe.Done, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", nil) }},
		{"DoTx", observe.Done, true, func(f *faulty) { doTx(f, parks.For("1"), "", nil) }},
		{"InTx", observe.Done, true, func(f *faulty) { inTx(f, parks.For("1"), "", nil) }},
		{"Ask, happened", observe.Done, false, func(f *faulty) { ask(f, looks(true, nil)) }},
		{"Do, no", observe.Rejected, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", once.ErrRejected) }},
		{"DoTx, no", observe.Rejected, true, func(f *faulty) { doTx(f, parks.For("1"), "", once.ErrRejected) }},
		{"InTx, no", observe.Rejected, true, func(f *faulty) { inTx(f, parks.For("1"), "", once.ErrRejected) }},
		{"Do, a no that says NotDone", observe.Failed, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", once.NotDone(once.ErrRejected)) }},
		{"Ask, rejected", observe.Rejected, false, func(f *faulty) { ask(f, looks(false, once.ErrRejected)) }},
		{"Do again", observe.Replayed, false, func(f *faulty) {
			do(f, ctx, parks.For("1"), "", nil)
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"DoTx again, of a no", observe.Replayed, false, func(f *faulty) {
			doTx(f, parks.For("1"), "", once.ErrRejected)
			doTx(f, parks.For("1").Redelivered(), "", nil)
		}},
		{"InTx again", observe.Replayed, false, func(f *faulty) {
			inTx(f, parks.For("1"), "", nil)
			inTx(f, parks.For("1"), "", nil)
		}},
		{"Ask, not happened", observe.Free, false, func(f *faulty) { ask(f, looks(false, nil)) }},
		{"Ask, not happened, and claimed at once", observe.Free, false, func(f *faulty) {
			f.settled = func() {
				k := looks(false, nil).For("1").Key()
				_, _ = f.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{2}}, Lease: time.Hour})
			}
			ask(f, looks(false, nil))
		}},
		{"Do inside Do", observe.InProgress, false, func(f *faulty) {
			_, _ = once.Do(ctx, f, refuses.For("1"), func(ctx context.Context, _ once.Key) (string, error) {
				do(f, ctx, refuses.For("1"), "", nil)
				runtime.Goexit()
				return "", nil
			})
		}},
		{"Do, other input", observe.Mismatch, false, func(f *faulty) {
			do(f, ctx, parks.For("1").Input([]byte("a")), "", nil)
			do(f, ctx, parks.For("1").Input([]byte("b")), "", nil)
		}},
		{"Do, forgotten", observe.Expired, false, func(f *faulty) {
			do(f, ctx, brief.For("1"), "", nil)
			do(f, ctx, brief.For("1"), "", nil)
		}},
		{"Do, not kept", observe.Unavailable, false, func(f *faulty) {
			do(f, ctx, parks.For("1"), string(make([]byte, 2<<20)), nil)
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"Do, plain error", observe.Parked, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", errNet) }},
		{"Do, with the error of a step", observe.Parked, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", once.ErrMismatch) }},
		{"Ask, parks", observe.Parked, false, func(f *faulty) { ask(f, parks) }},
		{"Do, plain error, resent", observe.Unknown, true, func(f *faulty) { do(f, ctx, refuses.For("1"), "", errNet) }},
		{"DoTx, lost commits", observe.Unknown, false, func(f *faulty) {
			f.transact = once.ErrOutcomeUnknown
			doTx(f, parks.For("1"), "", nil)
		}},
		{"Ask, no answer", observe.Unknown, false, func(f *faulty) { ask(f, looks(false, errNet)) }},
		{"Ask, resends", observe.Unknown, false, func(f *faulty) { ask(f, refuses) }},
		{"Do, overtaken", observe.LeaseLost, true, func(f *faulty) {
			f.settle = once.ErrLeaseLost
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"Do, NotDone", observe.Failed, true, func(f *faulty) { do(f, ctx, parks.For("1"), "", once.NotDone(errNet)) }},
		{"Do, NotDone of a step's error", observe.Failed, true, func(f *faulty) {
			do(f, ctx, parks.For("1"), "", errors.Join(once.ErrLeaseLost, once.NotDone(errNet)))
		}},
		{"DoTx, plain error", observe.Failed, true, func(f *faulty) { doTx(f, parks.For("1"), "", errNet) }},
		{"DoTx, with the error of a step", observe.Failed, true, func(f *faulty) { doTx(f, parks.For("1"), "", once.ErrInProgress) }},
		{"DoTx, too large", observe.Failed, true, func(f *faulty) { doTx(f, parks.For("1"), string(make([]byte, 2<<20)), nil) }},
		{"InTx, plain error", observe.Failed, true, func(f *faulty) { inTx(f, parks.For("1"), "", errNet) }},
		{"DoTx, deadlocks", observe.Conflict, false, func(f *faulty) {
			f.transact = once.ErrConflict // which is repeated for as long as there is time
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, _ = once.DoTx(limited, f, parks.For("1"), func(context.Context, *memstore.Tx) (string, error) { return "", nil })
		}},
		{"InTx, deadlock in a claim that had lapsed", observe.Conflict, true, func(f *faulty) {
			f.lapsed = true
			inTx(f, parks.For("1"), "", once.ErrConflict)
		}},
		{"InTx, store down after a claim that had lapsed", observe.Store, true, func(f *faulty) {
			f.lapsed, f.settleTx = true, errNet
			inTx(f, parks.For("1"), "", nil)
		}},
		{"Do, damaged", observe.Corrupt, false, func(f *faulty) {
			do(f, ctx, parks.For("1"), "", nil)
			f.damaged = true
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"Do, store down", observe.Store, false, func(f *faulty) {
			f.claim = errNet
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"Do, store closed", observe.Store, false, func(f *faulty) {
			f.claim = once.ErrClosed
			do(f, ctx, parks.For("1"), "", nil)
		}},
		{"Do, caller gone", observe.Canceled, false, func(f *faulty) {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			do(f, gone, parks.For("1"), "", nil)
		}},
		{"Do, no choice", observe.Invalid, false, func(f *faulty) { do(f, ctx, (&once.Operation[string]{Name: "none"}).For("1"), "", nil) }},
		{"Do in DoTx", observe.Invalid, false, func(f *faulty) {
			_, _ = once.DoTx(ctx, f, parks.For("1"), func(ctx context.Context, _ *memstore.Tx) (string, error) {
				do(f, ctx, parks.For("2"), "", nil)
				runtime.Goexit()
				return "", nil
			})
		}},
		{"Do, panic", observe.Panicked, true, func(f *faulty) {
			_, _ = once.Do(ctx, f, parks.For("1"), func(context.Context, once.Key) (string, error) { panic("work") })
		}},
		{"DoTx, panic", observe.Panicked, true, func(f *faulty) {
			_, _ = once.DoTx(ctx, f, parks.For("1"), func(context.Context, *memstore.Tx) (string, error) { panic("work") })
		}},
		{"InTx, panic", observe.Panicked, true, func(f *faulty) {
			_, _ = once.InTx(ctx, f, f.Begin(), parks.For("1"), func(context.Context) (string, error) { panic("work") })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ends []once.CallResult
			o := observer(func(e once.CallResult) { ends = append(ends, e) })
			f := &faulty{Store: memstore.New(&memstore.Options{Options: once.Options{Observer: o}})}
			gone := make(chan bool)
			go func() {
				defer close(gone)
				defer func() { _ = recover() }()
				c.act(f)
			}()
			<-gone
			if slices.Contains([]string{"Do inside Do", "Do in DoTx"}, c.name) {
				ends = ends[:len(ends)-1] // of the one outside
			}
			got := ends[len(ends)-1]
			seen[got.Result] = true
			if got.Result != c.want || got.Ran != c.ran {
				t.Errorf("it has ended as %q, ran %v; want %q, %v (%v)", got.Result, got.Ran, c.want, c.ran, got.Err)
			}
			if good := slices.Contains([]string{observe.Done, observe.Replayed, observe.Free}, got.Result); good && got.Err != nil &&
				!errors.Is(got.Err, once.ErrRejected) {
				t.Errorf("%q with the error %v", got.Result, got.Err)
			}
		})
	}
	for _, result := range observe.Results() {
		if !seen[result] {
			t.Errorf("no call has ended as %q", result)
		}
	}
}

type observer func(once.CallResult)

func (o observer) Begin(ctx context.Context, _ string, _ once.Key) (context.Context, func(once.CallResult)) {
	return ctx, o
}

func TestResultsAreAllOfThem(t *testing.T) {
	if n := constants(t, "observe.go"); n == 0 || n != len(observe.Results()) {
		t.Errorf("there are %d constants, and %d Results", n, len(observe.Results()))
	}
	if n := constants(t, "messages.go"); n == 0 || n+1 != len(observe.Outcomes()) { // and Parked
		t.Errorf("there are %d constants, and %d Outcomes", n, len(observe.Outcomes()))
	}
}

// constants is how many a file declares.
func constants(t *testing.T, name string) (n int) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if decl, ok := node.(*ast.GenDecl); ok && decl.Tok == token.CONST {
			n += len(decl.Specs)
		}
		return true
	})
	return n
}
