package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// Forgettable returns records that Forget would change now, with the outcomes that are still there, in two round trips.
//
// With Options.Partition it is [errors.ErrUnsupported]: there a whole partition is dropped at once, and nothing is written
// to its rows before that, so that nobody can say which of them were archived.
func (s *Store) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	if limit <= 0 {
		return nil, false, fmt.Errorf("%w: Forgettable with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.readyToArchive(ctx); err != nil {
		return nil, false, err
	}
	later, err := s.pool.Exec(ctx, s.sql.keepLater, int64(limit))
	if err != nil {
		return nil, false, explain(err)
	}
	due, full, err := s.dueRecords(ctx, limit)
	return due, full || len(due)+int(later.RowsAffected()) >= limit, explain(err)
}

// dueRecords ends a page early when its outcomes are large. What is left of it is not read: that may be a hundred times as
// much, for each page. So its connection is closed.
func (s *Store) dueRecords(ctx context.Context, limit int) (due []once.Record, full bool, err error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	rows, _ := s.pool.Query(ctx, s.sql.dueRecords, int64(limit)) // its error is also in rows
	defer rows.Close()
	for size := 0; rows.Next(); {
		rec, err := readRecord(rows)
		if err != nil {
			return nil, false, err
		}
		due = append(due, rec)
		if size += len(rec.Outcome.Body); size >= store.MaxForgettable {
			hangUp()
			return due, true, nil
		}
	}
	return due, false, rows.Err()
}

func (s *Store) readyToArchive(ctx context.Context) error {
	if s.partition != nil && s.invalid == nil {
		return fmt.Errorf("%w: records in partitions are forgotten together, so none can be kept elsewhere first: "+
			"for an archive, use tables without Options.Partition", errors.ErrUnsupported)
	}
	return s.ready(ctx, s.pool)
}

// forgottenAtOnce is how many records a statement is about.
const forgottenAtOnce = 1000

// ForgetRecords forgets what Forgettable returned, a thousand of them in one statement. It passes over rows that somebody
// is just changing. With Options.Partition it is [errors.ErrUnsupported].
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	if err := s.readyToArchive(ctx); err != nil || len(due) == 0 {
		return 0, err
	}
	for some := range slices.Chunk(due, forgottenAtOnce) {
		keys, owners, attempts := make(uuids, len(some)), make(uuids, len(some)), make([]int64, len(some))
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

// Reopen makes a key that is done free again.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := s.ready(ctx, s.pool); err != nil {
		return err
	}
	for range reopenTries {
		changed, err := s.reopen(ctx, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt, keepKey.Microseconds(), clean(reason))
		if err != nil || changed == 1 {
			return explain(err)
		}
		var free, done bool
		if err := s.pool.QueryRow(ctx, s.sql.reopened, uuid(fence.Key.UUID()), uuid(fence.Owner), fence.Attempt).Scan(&free, &done); err != nil || free {
			return explain(err)
		}
		if !done { // else it was moved to another partition just now
			break
		}
	}
	return lost(fence)
}

const reopenTries = 3

// reopen is in a transaction for the sake of its level: in another one, the newest partition may be one of the past.
func (s *Store) reopen(ctx context.Context, args ...any) (int64, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = tx.Rollback(ctx) // the connection is closed if it fails; after the commit there is nothing left to do
	}()
	tag, err := tx.Exec(ctx, s.sql.reopen, args...)
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), tx.Commit(ctx)
}

// retentionStatements are the statements of this file.
type retentionStatements struct{ keepLater, dueRecords, forgetRecords, reopen, reopened string }

func newRetentionStatements(text func(sql string) string) retentionStatements {
	columns := strings.NewReplacer("({status})::int", leftSQL, "{body}", "r.outcome").Replace(columnsSQL)
	return retentionStatements{
		keepLater:     text(keepLaterSQL),
		dueRecords:    text(strings.Replace(dueRecordsSQL, "{columns}", columns, 1)),
		forgetRecords: text(forgetRecordsSQL),
		reopen:        text(reopenSQL),
		reopened:      text(reopenedSQL),
	}
}

const (
	pastSQL = `(r.key_until <= (SELECT now FROM clock) OR r.outcome_until <= (SELECT now FROM clock))`

	// leftSQL is the status of a row that is due, by what is still there of it. That its outcome was dropped shows in its
	// lease, and where an earlier build did it, in when it is due.
	leftSQL = `CASE WHEN r.outcome IS NULL AND r.outcome_until IS NULL THEN 0
	WHEN r.outcome IS NULL AND (r.lease_until = 0 OR r.due = r.key_until AND r.outcome_until < r.key_until - 1000000) THEN 5 ELSE 4 END`

	// keepLaterSQL puts off what turns out to be due later than its claim foresaw, so that it is not in the way.
	keepLaterSQL = `WITH {clock},
due AS (SELECT key FROM {table} WHERE due <= (SELECT now FROM clock) ORDER BY due LIMIT $1::bigint FOR UPDATE SKIP LOCKED)
UPDATE {table} AS r SET due = CASE WHEN r.outcome_until > (SELECT now FROM clock) THEN r.outcome_until ELSE r.key_until END
WHERE r.key = ANY (ARRAY(SELECT key FROM due)) AND r.due <= (SELECT now FROM clock) AND ` + pastSQL + ` IS NOT TRUE`

	// dueRecordsSQL waits for nobody: it reads what is committed.
	dueRecordsSQL = `WITH {clock} SELECT {columns}
FROM (SELECT * FROM {table} WHERE due <= (SELECT now FROM clock) ORDER BY due LIMIT $1::bigint) AS r, clock
WHERE ` + pastSQL + ` ORDER BY r.due`

	// forgetRecordsSQL is forgetSQL for the records that were read, as long as they are the same.
	forgetRecordsSQL = `WITH {clock},
due AS (SELECT r.key FROM {table} r WHERE r.key = ANY ($1::uuid[]) AND r.due <= (SELECT now FROM clock) AND ` + pastSQL + ` AND (
	(r.key, r.owner, r.attempt) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[])) OR
	r.status = 0 AND (r.key, r.attempt) IN (SELECT * FROM unnest($1::uuid[], $3::bigint[]))) FOR UPDATE SKIP LOCKED),
forgotten AS (DELETE FROM {table} r WHERE r.key = ANY (ARRAY(SELECT key FROM due)) AND r.key_until <= (SELECT now FROM clock) RETURNING 1),
kept AS (UPDATE {table} r SET outcome = NULL, lease_until = 0, due = r.key_until
	WHERE r.key = ANY (ARRAY(SELECT key FROM due)) AND (r.key_until <= (SELECT now FROM clock)) IS NOT TRUE RETURNING 1)
SELECT (SELECT count(*) FROM forgotten) + (SELECT count(*) FROM kept)`

	// reopenSQL keeps the owner, as a settlement does that frees a key: that is how what it still sends is known to be late.
	reopenSQL = `UPDATE {table} AS r SET status = 0, lease_until = NULL, outcome = NULL, content_type = '', flags = 0, sum = 0, outcome_until = NULL,
	key_until = {now} + $4::bigint, due = {now} + $4::bigint, reason = $5::text, updated = {now}
WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status = 4 AND r.key_until > {now}`

	// reopenInPartsSQL exchanges the row for one in the newest partition, because what is settled is never updated: a partition
	// that was found to be over would be dropped with it. Whatever snapshot a claim has, it sees one of the two.
	reopenInPartsSQL = `WITH {clock}, done AS (
	DELETE FROM {table} r WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status = 4 AND r.key_until > {now}
	RETURNING *)
INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, fingerprint, cause, key_until, due, reason, created, updated)
SELECT {newest}, key, scope, operation, id, 0, attempt, owner, fingerprint, cause, now + $4::bigint, now + $4::bigint, $5::text, created, now
FROM done, clock`

	reopenedSQL = `WITH {clock} SELECT count(*) FILTER (WHERE r.status = 0) > 0, count(*) FILTER (WHERE r.status = 4) > 0
FROM {table} r, clock WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.key_until > clock.now`
)
