package pgstore

import (
	"bytes"
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// claimNewest takes a key that was never seen, in one round trip. Where it cannot, nothing has failed.
func (s *Store) claimNewest(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	key := r.Key.UUID()
	sql := s.sql.claimNew
	if r.AsyncCommit {
		sql = s.sql.claimAsync
	}
	var created int64
	b := new(pgx.Batch)
	b.Queue(s.sql.gateNew, s.lock(key)).QueryRow(readGate)
	b.Queue(sql, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Lease.Microseconds(), r.Fingerprint, s.lock(key), causeOf(r)).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&created}, func() error { won = true; return nil })
		return err
	})
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil || !won {
		return rec, false, err
	}
	at := time.UnixMicro(created)
	return once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease,
		Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause, Created: at, Updated: at}, true, nil
}

// queueGated queues a claim of a key that may be known.
func (s *Store) queueGated(b *pgx.Batch, r once.ClaimRequest, into *once.Record) {
	key := r.Key.UUID()
	b.Queue(s.sql.gate, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt, s.lock(key)).QueryRow(readGate)
	b.Queue(s.sql.claim, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt,
		r.Lease.Microseconds(), r.Fingerprint, s.lock(key), causeOf(r)).Query(readInto(into))
}

// readGate takes the answer of a gate: the statement behind it does nothing in a wrong level.
func readGate(row pgx.Row) error {
	var level, word string
	if err := row.Scan(&level, &word); err != nil {
		return err
	}
	if level != string(pgx.ReadCommitted) {
		return wrongLevel(level)
	}
	return nil
}
