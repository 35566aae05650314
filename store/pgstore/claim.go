package pgstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// Claim takes a free key, or returns what stands in the way: a key that was never seen in one round trip, any other in
// two. It never waits for another transaction: one that is in flight on the key is answered with Running and LeaseLeft 0.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	if r.Attempt == 0 {
		claim := s.claimer.claim
		if s.partition != nil {
			claim = s.claimNewest
		}
		if rec, won, err := claim(ctx, r); won || err != nil {
			return rec, explain(err)
		}
	}
	recs, err := s.claims(ctx, s.pool, new(pgx.Batch), []once.ClaimRequest{r})
	if err != nil {
		return once.Record{}, err
	}
	return recs[0], nil
}

// claimNew takes a key that was never seen.
func (s *Store) claimNew(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	key := r.Key.UUID()
	keep, grain := foreseen(r)
	var created int64
	sql := s.sql.claimNew
	if r.AsyncCommit {
		sql = s.sql.claimAsync
	}
	err = s.pool.QueryRow(ctx, sql, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner),
		r.Lease.Microseconds(), r.Fingerprint, s.names.Lock(key), keep, grain, causeOf(r)).Scan(&created)
	if errors.Is(err, pgx.ErrNoRows) {
		return rec, false, nil
	}
	at := time.UnixMicro(created)
	return once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease,
		Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause, Created: at, Updated: at}, err == nil, err
}

// ClaimTx is Claim for each Request, inside a transaction that the caller began and ends. One that is REPEATABLE READ
// or SERIALIZABLE does not see what was committed after its snapshot: where that decides a claim, PostgreSQL
// fails the transaction and the error is [once.ErrConflict].
func (s *Store) ClaimTx(ctx context.Context, tx pgx.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	h := handleOf(tx)
	mine := func(r once.ClaimRequest) bool { return h != nil && h.own != nil && h.own(r.Key) }
	if !slices.ContainsFunc(rs, mine) {
		return s.claims(ctx, tx, new(pgx.Batch), rs)
	}
	// A key of the transaction itself is what nobody is done with, whatever its row says already.
	recs, err := s.claims(ctx, tx, new(pgx.Batch), slices.DeleteFunc(slices.Clone(rs), mine))
	for i, r := range rs {
		if mine(r) {
			recs = slices.Insert(recs, min(i, len(recs)), once.Record{Key: r.Key, Status: once.Running})
		}
	}
	return recs, err
}

const claimTries = 4

// claims sends what is in b and all claims in one round trip. A claim that neither took its key nor saw what holds it
// is sent again: it has lost a race, and the next snapshot shows the winner.
func (s *Store) claims(ctx context.Context, q querier, b *pgx.Batch, rs []once.ClaimRequest) ([]once.Record, error) {
	recs := make([]once.Record, len(rs))
	for range claimTries {
		for i, r := range rs {
			if unanswered(recs[i]) {
				s.queueClaim(b, r, &recs[i])
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
		if unanswered(recs[i]) { // a rival that keeps moving is one that is running
			recs[i] = once.Record{Key: r.Key, Status: once.Running}
		}
	}
	return recs, nil
}

// unanswered tells a claim that has to be sent again from one that came after its owner's release.
func unanswered(rec once.Record) bool { return rec.Status == once.Absent && rec.Attempt == 0 }

func (s *Store) queueClaim(b *pgx.Batch, r once.ClaimRequest, into *once.Record) {
	if s.partition != nil {
		s.queueGated(b, r, into)
		return
	}
	key := r.Key.UUID()
	keep, grain := foreseen(r)
	b.Queue(s.sql.claim, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt,
		r.Lease.Microseconds(), r.Fingerprint, s.names.Lock(key), keep, grain, causeOf(r)).Query(readInto(into))
}

func readInto(rec *once.Record) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, readRecord)
		if err == nil && len(found) > 0 {
			*rec = found[0]
		}
		return err
	}
}

// foreseen is how long the row of a claim is likely to be left alone by Forget, and how exactly that is to be known.
func foreseen(r once.ClaimRequest) (keep *int64, grain int64) {
	if r.Expected == nil {
		return nil, 1
	}
	first := min(r.Expected.KeepOutcome, r.Expected.KeepKey)
	return micros(first), sqlschema.Grain(first)
}
