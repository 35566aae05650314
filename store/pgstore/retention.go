package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/jackc/pgx/v5"
)

// Forgettable returns records that Forget would change now, with the outcomes
// that are still there, in two round trips.
//
// With Options.Partition it returns [errors.ErrUnsupported]. Whole partitions
// are dropped at once, and nothing is written to their rows before, so nobody
// could tell which of them were archived.
func (s *Store) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	if err := s.readyToArchive(ctx); err != nil {
		return nil, false, err
	}
	due, more, err = s.shared.Forgettable(ctx, client{s.pool}, limit)
	return due, more, explain(err)
}

func (s *Store) readyToArchive(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	if err := s.records.checkArchivable(); err != nil {
		return err
	}
	return s.ready(ctx, s.pool)
}

// forgottenAtOnce is the number of records in one statement.
const forgottenAtOnce = 1000

// ForgetRecords forgets what Forgettable returned, a thousand records in one
// statement. It skips rows that another transaction is changing. With
// Options.Partition it returns [errors.ErrUnsupported].
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	if err := s.readyToArchive(ctx); err != nil || len(due) == 0 {
		return 0, err
	}
	for some := range slices.Chunk(due, forgottenAtOnce) {
		keys, owners, attempts := make(uuidArray, len(some)), make(uuidArray, len(some)), make([]int64, len(some))
		for i, rec := range some {
			keys[i], owners[i], attempts[i] = rec.Key.UUID(), rec.Owner, rec.Attempt
		}
		n := 0
		if err := s.pool.QueryRow(ctx, s.sql.forgetRecords, keys, owners, attempts).Scan(&n); err != nil {
			return changed, explain(err)
		}
		changed += n
	}
	return changed, nil
}

// Reopen releases a key that is done.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	for range reopenTries {
		changed, err := s.reopen(ctx, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt, keepKey.Microseconds(), sqlschema.ValidText(reason))
		if err != nil || changed == 1 {
			return explain(err)
		}
		var free, done bool
		if err := s.pool.QueryRow(ctx, s.sql.reopened, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt).Scan(&free, &done); err != nil || free {
			return explain(err)
		}
		if !done { // else it was just moved to another partition
			break
		}
	}
	return records.LeaseLost(fence)
}

const reopenTries = 3

// reopen sets the isolation level. At other levels, the newest partition of the
// snapshot may no longer be the newest.
func (s *Store) reopen(ctx context.Context, args ...any) (int64, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = tx.Rollback(ctx) // does nothing after the commit; if it fails, the connection is closed
	}()
	tag, err := tx.Exec(ctx, s.sql.reopen, args...)
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), tx.Commit(ctx)
}

// retentionStatements has the statements of this file.
type retentionStatements struct{ forgetRecords, reopen, reopened string }

func newRetentionStatements(text func(sql string) string) retentionStatements {
	return retentionStatements{
		forgetRecords: text(forgetRecordsSQL),
		reopen:        text(reopenSQL),
		reopened:      text(reopenedSQL),
	}
}

const (
	pastSQL = `(r.key_until <= (SELECT now FROM clock) OR r.outcome_until <= (SELECT now FROM clock))`

	// forgetRecordsSQL is forgetSQL for records that have not changed since
	// they were read.
	forgetRecordsSQL = `WITH {clock},
due AS (SELECT r.key FROM {table} r WHERE r.key = ANY ($1::uuid[]) AND r.due <= (SELECT now FROM clock) AND ` + pastSQL + ` AND (
	(r.key, r.owner, r.attempt) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[])) OR
	r.status = 0 AND (r.key, r.attempt) IN (SELECT * FROM unnest($1::uuid[], $3::bigint[]))) FOR UPDATE SKIP LOCKED),
forgotten AS (DELETE FROM {table} r WHERE r.key = ANY (ARRAY(SELECT key FROM due)) AND r.key_until BETWEEN r.updated - 1000000 AND (SELECT now FROM clock) RETURNING 1),
kept AS (UPDATE {table} r SET outcome = NULL, lease_until = 0, due = r.key_until
	WHERE r.key = ANY (ARRAY(SELECT key FROM due)) AND (r.key_until BETWEEN r.updated - 1000000 AND (SELECT now FROM clock)) IS NOT TRUE RETURNING 1)
SELECT (SELECT count(*) FROM forgotten) + (SELECT count(*) FROM kept)`

	// reopenSQL keeps the owner, as a settlement that releases a key does: so
	// late calls of that owner are recognized.
	reopenSQL = `UPDATE {table} AS r SET status = 0, lease_until = NULL, outcome = NULL, content_type = '', flags = 0, sum = 0, outcome_until = NULL,
	key_until = {now} + $4::bigint, due = {now} + $4::bigint, reason = $5::text, updated = {now}
WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status = 4 AND r.key_until > {now}`

	// reopenInPartsSQL replaces the row by one in the newest partition. Settled
	// rows are never updated, since their partition may already be chosen to be
	// dropped. Whatever snapshot a claim has, it sees one of the two rows.
	reopenInPartsSQL = `WITH {clock}, done AS (
	DELETE FROM {table} r WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status = 4 AND r.key_until > {now}
	RETURNING *)
INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, fingerprint, cause, key_until, due, reason, created, updated)
SELECT {newest}, key, scope, operation, id, 0, attempt, owner, fingerprint, cause, now + $4::bigint, now + $4::bigint, $5::text, created, now
FROM done, clock`

	reopenedSQL = `WITH {clock} SELECT count(*) FILTER (WHERE r.status = 0) > 0, count(*) FILTER (WHERE r.status = 4) > 0
FROM {table} r, clock WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.key_until > clock.now`
)
