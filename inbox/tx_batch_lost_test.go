//go:build go1.25

package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store/memstore"
)

// troubled is a store whose transactions end as their number says.
type troubled struct {
	*memstore.Store
	fail     func(n int) (err error, entered bool)
	requests []once.ClaimRequest
}

func (s *troubled) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	s.requests = append(s.requests, rs...)
	err, entered := s.fail(len(s.requests))
	if !entered {
		return nil, err
	}
	return s.Store.Transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		sets, bodyErr := body(tx, recs)
		return sets, errors.Join(bodyErr, err)
	})
}

// A commit was lost, and may still arrive. Claims stay firm until one is won,
// whatever else fails meanwhile.
func TestABatchClaimsFirmlyUntilALostCommitCannotArrive(t *testing.T) {
	down := errors.New("the store is down")
	for name, c := range map[string]struct {
		entered bool // the second transaction wins its claim, and then fails
		firm    bool // the third one
	}{"the store fails before the claim": {false, true}, "the claim is won": {true, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := &troubled{Store: memstore.New(nil)}
			s.fail = func(n int) (error, bool) {
				switch n {
				case 1:
					return once.ErrOutcomeUnknown, false
				case 2:
					return down, c.entered
				}
				return nil, true
			}
			e := newCounting(s.Store, func(_ int, commit func(error) error) error { return commit(nil) })
			h := &txBatch[*memstore.Tx]{&txHandler[*memstore.Tx]{env: e, txStore: s, op: &once.Operation[none]{Name: "billing"}}}
			h.call = func(context.Context, *memstore.Tx, []*broker.Message) error { return nil }
			it := uncounted("a")
			it.key = once.Key{Operation: "billing", ID: "a"}
			if _, err := h.try(t.Context(), []*item{it}); !errors.Is(err, down) {
				t.Fatalf("%s: the first try returned %v", name, err)
			}
			if _, err := h.try(t.Context(), []*item{it}); err != nil {
				t.Fatalf("%s: the second try returned %v", name, err)
			}
			first, third := s.requests[0], s.requests[2]
			if third.Firm != c.firm || (third.Owner == first.Owner) != c.firm || !s.requests[1].Firm {
				t.Errorf("%s: the requests are %+v", name, s.requests)
			}
		})
	}
}
