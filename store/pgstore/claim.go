package pgstore

import (
	"context"
	"errors"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lossrate"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// Claim takes a free key, or returns the record that is in the way: in one
// round trip for a key that was never seen, in two for any other. If many claims
// were lost lately, it looks the record up first, so that a duplicate takes one.
// It does not wait for other transactions. If one is in flight on the key, the
// record is Running with LeaseLeft 0.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	if r.Attempt == 0 {
		lost := &s.losses.claim
		if rec, err := s.readIfLikely(ctx, s.pool, lost, r); err != nil || rec.Status != once.Absent {
			return rec, err
		}
		rec, won, err := s.records.claimNew(ctx, r)
		if err != nil {
			return rec, explain(err)
		}
		lost.Count(!won)
		if won {
			return rec, nil
		}
	}
	recs, err := s.claims(ctx, s.pool, new(pgx.Batch), []once.ClaimRequest{r})
	if err != nil {
		return once.Record{}, err
	}
	return recs[0], nil
}

// insertClaim claims a key that was never seen, by one statement.
func (s *Store) insertClaim(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	sql := s.sql.claimNew
	if r.AsyncCommit {
		sql = s.sql.claimAsync
	}
	return s.insert(ctx, s.pool, sql, r)
}

// insert claims by claimNewSQL, or by another form of it.
func (s *Store) insert(ctx context.Context, q querier, sql string, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	key := r.Key.UUID()
	keep, grain := expectedKeep(r)
	var created int64
	err = q.QueryRow(ctx, sql, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner),
		r.Lease.Microseconds(), r.Fingerprint, s.names.Lock(key), keep, grain, causeOf(r)).Scan(&created)
	if errors.Is(err, pgx.ErrNoRows) {
		return rec, false, nil
	}
	return sqlschema.NewRecord(r, created), err == nil, err
}

// claimOneTx is ClaimTx for a key that may be new. It expects a new one, unless
// many claims were lost lately: a duplicate takes a round trip more then.
func (s *Store) claimOneTx(ctx context.Context, tx pgx.Tx, r once.ClaimRequest) ([]once.Record, error) {
	lost := &s.losses.claimTx
	if !lost.High() {
		rec, won, err := s.insert(ctx, tx, s.sql.claimNewTx, r)
		if err != nil {
			return nil, explain(err)
		}
		if won {
			lost.Count(false)
			return []once.Record{rec}, nil
		}
	}
	recs, err := s.claims(ctx, tx, new(pgx.Batch), []once.ClaimRequest{r})
	if err == nil {
		lost.Count(!recs[0].HeldBy(r.Owner))
	}
	return recs, err
}

// ClaimTx is Claim for each request, inside a transaction that the caller began
// and ends, in one round trip for all of them, or in two for a single duplicate
// among few. A transaction that is REPEATABLE READ or SERIALIZABLE does not see
// what was committed after its snapshot. Where that decides a claim, PostgreSQL
// fails the transaction and the error is [once.ErrConflict].
func (s *Store) ClaimTx(ctx context.Context, tx pgx.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	h := handleOf(tx)
	for _, r := range rs {
		if err := h.runBeforeOwn(ctx, r.Key); err != nil {
			return nil, err
		}
	}
	reserved := func(r once.ClaimRequest) bool { return h != nil && h.reserved != nil && h.reserved(r.Key) }
	if !slices.ContainsFunc(rs, reserved) {
		if s.records.reserves() && len(rs) == 1 && rs[0].Attempt == 0 {
			return s.claimOneTx(ctx, tx, rs[0])
		}
		return s.claims(ctx, tx, new(pgx.Batch), rs)
	}
	// A key that the transaction itself has reserved is running, whatever its
	// row says.
	recs, err := s.claims(ctx, tx, new(pgx.Batch), slices.DeleteFunc(slices.Clone(rs), reserved))
	for i, r := range rs {
		if reserved(r) {
			recs = slices.Insert(recs, min(i, len(recs)), once.Record{Key: r.Key, Status: once.Running})
		}
	}
	return recs, err
}

const claimTries = 4

// claims sends what b has and all claims in one round trip. It sends a claim
// again that neither took its key nor read what holds it: then another claim
// was committed meanwhile, which the next snapshot shows.
func (s *Store) claims(ctx context.Context, q querier, b *pgx.Batch, rs []once.ClaimRequest) ([]once.Record, error) {
	recs := make([]once.Record, len(rs))
	for range claimTries {
		for i, r := range rs {
			if isUnanswered(recs[i]) {
				s.records.queueClaim(b, r, &recs[i])
			}
		}
		if b.Len() == 0 {
			return recs, nil
		}
		if err := q.SendBatch(ctx, b).Close(); err != nil {
			return nil, explain(err)
		}
		b = new(pgx.Batch)
	}
	for i, r := range rs {
		if isUnanswered(recs[i]) { // the key keeps changing hands, so another call is running
			recs[i] = once.Record{Key: r.Key, Status: once.Running}
		}
	}
	return recs, nil
}

// isUnanswered reports whether a claim has to be sent again. The record of a
// claim that came after the release of its owner has an Attempt.
func isUnanswered(rec once.Record) bool { return rec.Status == once.Absent && rec.Attempt == 0 }

func readInto(rec *once.Record) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, readRecord)
		if err == nil && len(found) > 0 {
			*rec = found[0]
		}
		return err
	}
}

// expectedKeep returns for how long Forget is expected to leave the row of a
// claim alone, or nil, and how exactly that is stored.
func expectedKeep(r once.ClaimRequest) (keep *int64, grain int64) {
	if r.Expected == nil {
		return nil, 1
	}
	first := min(r.Expected.KeepOutcome, r.Expected.KeepKey)
	return micros(first), sqlschema.Grain(first)
}

// readIfLikely returns the record that is in the way of a claim, if many were
// lost lately and there is one.
func (s *Store) readIfLikely(ctx context.Context, q querier, lost *lossrate.Rate, r once.ClaimRequest) (once.Record, error) {
	if !lost.High() {
		return once.Record{}, nil
	}
	rec, err := s.record(ctx, q, r.Key)
	if err != nil || rec.Status == once.Absent || rec.HeldBy(r.Owner) {
		return once.Record{}, err
	}
	lost.Count(true)
	return rec, nil
}

// lossRates are those of Claim, ClaimTx and Transact.
type lossRates struct{ claim, claimTx, transact lossrate.Rate }
