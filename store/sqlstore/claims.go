package sqlstore

import (
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// claims is a transaction of Transact with the claims made in it.
type claims struct {
	*sqltx.Transaction
	requests []once.ClaimRequest
	made     []claimed
	phase    phase
}

// phase is how far a transaction of Transact has come.
type phase int

const (
	open phase = iota // to be rolled back, unless it is committed
	over              // committed, or nobody knows: the reply to COMMIT is missing
)

// beginClaims begins a transaction and claims in it.
func (s *Store) beginClaims(ctx context.Context, rs []once.ClaimRequest) (*claims, error) {
	t := &claims{requests: rs}
	locked, err := s.claimWithin(ctx, rs, func(bound time.Duration) (err error) {
		begun := time.Now()
		if t.Transaction, err = sqltx.Begin(ctx, s.pool, s.dialect); err != nil {
			return s.explain(err)
		}
		if t.made, err = s.claimBounded(ctx, t.Tx, time.Since(begun), bound, rs); err != nil {
			t.Rollback()
		}
		return err
	})
	if locked {
		t.made = []claimed{running(rs[0].Key)}
	}
	return t, err
}

func (t *claims) records() []once.Record { return recordsOf(t.made) }

func (t *claims) holdsAny() bool {
	for i, c := range t.made {
		if holds(t.requests[i], c.Record) {
			return true
		}
	}
	return false
}

// madeHere reports whether the claim with this fence was made in this
// transaction, and not by an earlier claim with the same token.
func (t *claims) madeHere(fence once.Fence) bool {
	for _, c := range t.made {
		if c.fresh && fenceOf(c.Record) == fence {
			return true
		}
	}
	return false
}
