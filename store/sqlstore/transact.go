package sqlstore

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Transact claims, runs body and settles in one transaction, which ends only here. Body may use the transaction for
// anything but Commit and Rollback; see the package documentation for what each database adds to that.
func (s *Store) Transact(ctx context.Context, rs []once.Request,
	body func(*sql.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	begun := time.Now()
	t, err := sqltx.Begin(ctx, s.db, s.dialect)
	if err != nil {
		return nil, s.fail(err)
	}
	defer t.Rollback() // whatever way out is taken, a panic too; after the commit there is nothing left to do
	claimed, err := s.claimBounded(ctx, t.Tx, time.Since(begun), rs)
	if err != nil || !holdsAny(rs, claimed) {
		return claimed, err
	}
	committing := false
	s.bell.begun(t.Tx)
	defer func() { s.bell.ended(t.Tx, committing) }()
	sets, err := body(t.Tx, slices.Clone(claimed))
	if err != nil {
		return nil, s.conflict(err)
	}
	if err := s.settleOwn(ctx, t.Tx, sets); err != nil {
		return nil, err
	}
	committing = true
	if err := t.Commit(); err != nil {
		return nil, s.commitFailed(err)
	}
	return claimed, nil
}

func holdsAny(rs []once.Request, recs []once.Record) bool {
	for i, rec := range recs {
		// One that lapsed while it waited in the database is nobody else's.
		if (rec.Status == once.Running || rec.Status == once.Unknown) && rec.Owner == rs[i].Owner {
			return true
		}
	}
	return false
}

// settleOwn is SettleTx for what a body returned. A settlement that changes nothing is an error too: it is the sign
// that the transaction is no longer the one that claimed.
func (s *Store) settleOwn(ctx context.Context, tx *sql.Tx, ss []once.Settlement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqltx.EndTime)
	defer cancel()
	for _, set := range ss {
		changed, err := s.settle(ctx, tx, s.sql.GetLocked, set)
		if err == nil && !changed {
			err = lost(set.Hold)
		}
		if err != nil {
			return s.settleFailed(err)
		}
	}
	return nil
}
