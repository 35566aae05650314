package once_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// hooks is a memstore on which a test can intercept single calls.
type hooks struct {
	*memstore.Store
	options  *once.Options // nil: those of the memstore
	claim    func(context.Context, once.ClaimRequest, claimFunc) (once.Record, error)
	extend   func(context.Context, once.Fence, time.Duration) error
	settle   func(context.Context, once.Settlement, settleFunc) error
	transact func(context.Context, []once.ClaimRequest, bodyFunc, transactFunc) ([]once.Record, error)
}

type (
	claimFunc    = func(context.Context, once.ClaimRequest) (once.Record, error)
	settleFunc   = func(context.Context, once.Settlement) error
	bodyFunc     = func(*memstore.Tx, []once.Record) ([]once.Settlement, error)
	transactFunc = func(context.Context, []once.ClaimRequest, bodyFunc) ([]once.Record, error)
)

func (h *hooks) Options() *once.Options {
	if h.options != nil {
		return h.options
	}
	return h.Store.Options()
}

func (h *hooks) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if h.claim != nil {
		return h.claim(ctx, r, h.Store.Claim)
	}
	return h.Store.Claim(ctx, r)
}

func (h *hooks) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if h.extend != nil {
		return h.extend(ctx, fence, d)
	}
	return h.Store.Extend(ctx, fence, d)
}

func (h *hooks) Settle(ctx context.Context, s once.Settlement) error {
	if h.settle != nil {
		return h.settle(ctx, s, h.Store.Settle)
	}
	return h.Store.Settle(ctx, s)
}

func (h *hooks) Transact(ctx context.Context, rs []once.ClaimRequest, body bodyFunc) ([]once.Record, error) {
	if h.transact != nil {
		return h.transact(ctx, rs, body, h.Store.Transact)
	}
	return h.Store.Transact(ctx, rs, body)
}

// processes returns n stores that share records and nothing else, as n
// processes do.
func processes(n int) (*memstore.Store, []*hooks) {
	shared := memstore.New(nil)
	all := make([]*hooks, n)
	for i := range all {
		all[i] = &hooks{Store: shared, options: once.Options{}.Ready()}
	}
	return shared, all
}

var (
	errNet   = errors.New("connection reset")
	testCtx  = context.Background()
	parked   = &once.Operation[string]{Name: "park", OnUnknown: once.Park}
	resent   = &once.Operation[string]{Name: "resend", OnUnknown: once.Resend}
	refusing = &once.Operation[string]{Name: "refuse", OnUnknown: once.Resend, Policy: once.Policy{Wait: once.NoWait}}
	inTx     = &once.Operation[string]{Name: "tx"}
)

// counter is work that counts its runs.
type counter struct{ n atomic.Int64 }

func (c *counter) run(value string, err error) func(context.Context, once.Key) (string, error) {
	return func(context.Context, once.Key) (string, error) {
		c.n.Add(1)
		return value, err
	}
}

func (c *counter) ran(t *testing.T, want int64) {
	t.Helper()
	if got := c.n.Load(); got != want {
		t.Errorf("the work ran %d times, want %d", got, want)
	}
}

func get(t *testing.T, s once.Store, k once.Key) once.Record {
	t.Helper()
	rec, err := s.Get(testCtx, k)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func wantStatus(t *testing.T, s once.Store, k once.Key, want once.Status) once.Record {
	t.Helper()
	rec := get(t, s, k)
	if rec.Status != want {
		t.Errorf("%s %s is %v, want %v (%s)", k.Operation, k.ID, rec.Status, want, rec.Reason)
	}
	return rec
}

func wantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("got error %v, want %v", err, target)
		}
	}
}

// claimed leaves a running claim of a crashed holder, whose lease lapses at
// once.
func crashed(t *testing.T, s once.Store, k once.Key) once.Record {
	t.Helper()
	rec, err := s.Claim(testCtx, once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	for rec.Status == once.Running {
		rec = get(t, s, k)
	}
	return rec
}

// never is work that must not run.
func never[T any](t *testing.T) func(context.Context, once.Key) (T, error) {
	return func(context.Context, once.Key) (v T, err error) {
		t.Error("the work ran")
		return v, nil
	}
}
