//go:build go1.25

package cas_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// hanging is an engine that answers nothing once it hangs, until the context of
// the call ends.
type hanging struct {
	*table
	hangs bool
}

func (h *hanging) wait(ctx context.Context) {
	if h.hangs {
		<-ctx.Done()
	}
}

func (h *hanging) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	h.wait(ctx)
	return h.table.Load(ctx, k)
}

func (h *hanging) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	h.wait(ctx)
	return h.table.Put(ctx, row, over)
}

// The end of the caller's context does not end a transaction. A database that
// does not answer must not keep it from returning.
func TestAnEngineThatHangsDoesNotHoldTheCaller(t *testing.T) {
	no := errors.New("out of stock")
	for name, r := range map[string]once.ClaimRequest{
		"a firm claim is taken back": {Firm: true},
		"a claim is looked for":      {ClaimHints: once.ClaimHints{Speculative: true, Expected: &once.Settlement{Status: once.Done}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &hanging{table: newTable()}
			s := &shop{cas.Transactions[*batch]{Store: cas.New(h, h, once.Options{}.Ready()), Engine: h}}
			r.Fence, r.Lease = once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{1}}, time.Minute
			begun := time.Now()
			_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(*batch, []once.Record) ([]once.Settlement, error) {
				h.hangs = true
				return nil, no
			})
			if took := time.Since(begun); !errors.Is(err, no) || took > time.Minute {
				t.Errorf("%s: Transact returned %v after %v", name, err, took)
			}
		})
	}
}
