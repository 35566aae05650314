package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Transact claims, runs body and settles in one transaction, which ends only here. Body may use the transaction for
// anything but Commit and Rollback; see the package documentation for what each database adds to that.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*sql.Tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	end, err := s.write(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	var t *sqltx.Transaction
	claims, err := s.patiently(ctx, rs, func(bound time.Duration) (claims []claimed, err error) {
		begun := time.Now()
		if t, err = sqltx.Begin(ctx, s.db, s.dialect); err != nil {
			return nil, s.fail(err)
		}
		defer func() {
			if err != nil {
				t.Rollback()
			}
		}()
		return s.claimBounded(ctx, t.Tx, time.Since(begun), bound, rs)
	})
	if err != nil {
		return nil, err
	}
	recs = records(claims)
	defer t.Rollback() // whatever way out is taken, a panic too; after the commit there is nothing left to do
	if !holdsAny(rs, recs) {
		return recs, nil
	}
	ended := false
	defer func() {
		if !ended {
			err = s.failed(ctx, t, end, rs, claims, err)
		}
	}()
	committing := false
	s.bell.begun(t.Tx)
	defer func() { s.bell.ended(t.Tx, committing) }()
	sets, err := body(t.Tx, slices.Clone(recs))
	if err != nil {
		return nil, s.conflict(err)
	}
	if err := s.settleOwn(ctx, t.Tx, claims, sets); err != nil {
		return nil, err
	}
	committing = true
	if err := t.Commit(); err != nil {
		err = s.commitFailed(err)
		ended = errors.Is(err, once.ErrOutcomeUnknown)
		return nil, err
	}
	ended = true
	return recs, nil
}

func holdsAny(rs []once.ClaimRequest, recs []once.Record) bool {
	for i, rec := range recs {
		if holds(rs[i], rec) {
			return true
		}
	}
	return false
}

// holds reports whether the claim was granted. One that lapsed while it waited in the database is nobody else's.
func holds(r once.ClaimRequest, rec once.Record) bool {
	return (rec.Status == once.Running || rec.Status == once.Unknown) && rec.Owner == r.Owner
}

func holdOf(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}

// settleOwn is SettleTx for what a body returned. A settlement that changes nothing is an error too: it is the sign
// that the transaction is no longer the one that claimed.
func (s *Store) settleOwn(ctx context.Context, tx *sql.Tx, claims []claimed, ss []once.Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	for _, set := range ss {
		how := s.sql.Settle
		if slices.ContainsFunc(claims, func(c claimed) bool { return c.fresh && holdOf(c.Record) == set.Fence }) {
			how = s.sql.SettleOwn
		}
		changed, err := s.settle(ctx, tx, how, s.sql.GetLocked, set)
		if err == nil && !changed {
			err = lost(set.Fence)
		}
		if err != nil {
			return s.settleFailed(err)
		}
	}
	return nil
}
