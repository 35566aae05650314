package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Get returns the record of a key as it is now. What a transaction in flight has written is not seen.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	return s.record(ctx, s.pool, k)
}

func (s *Store) record(ctx context.Context, q querier, k once.Key) (once.Record, error) {
	recs, err := records(ctx, q, s.sql.get, uuid(k.UUID()))
	if err != nil || len(recs) == 0 {
		return once.Record{}, err
	}
	return recs[0], nil
}

const defaultPage, largestPage = 100, 1000

// List returns records in the order of their digests. A page looks at 1,000
// rows at most: of those with the cause, if one is asked for; of those that are
// running, unknown or parked, if no others are; or else of all.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return page, err
	}
	var after [16]byte // less than any digest
	if q.After != (once.Key{}) {
		after = q.After.UUID()
	}
	var statuses []int32 // none, and so NULL: all
	for _, status := range q.Status {
		statuses = append(statuses, int32(status))
	}
	cause, key := given(q.Cause), given(q.UUID)
	var scopes []string // the same, also if there are none in a slice
	if len(q.Scopes) > 0 {
		scopes = q.Scopes
	}
	sql := s.sql.all
	if cause == nil && key == nil && sqlschema.Open(statuses) {
		sql = s.sql.unsettled
	}
	until := lastUUID
	if page.Next, err = s.endOf(ctx, sql.end, uuid(after), cause, key); err != nil {
		return page, err
	}
	if page.Next != (once.Key{}) {
		until = page.Next.UUID()
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	page.Records, err = records(ctx, s.pool, sql.page, pgx.QueryExecModeExec, uuid(after), uuid(until), q.Operation,
		scopes, statuses, max(q.Unchanged, 0).Microseconds(), int64(limit), cause, key)
	if err != nil {
		return once.RecordPage{}, err
	}
	if len(page.Records) == limit {
		page.Next = page.Records[limit-1].Key
	}
	return page, nil
}

var lastUUID = [16]byte(slices.Repeat([]byte{255}, 16))

// endOf is the key of the last row that a page looks at: the zero Key if there are fewer.
func (s *Store) endOf(ctx context.Context, sql string, after string, cause, key *string) (k once.Key, err error) {
	var digest pgtype.UUID
	err = s.pool.QueryRow(ctx, sql, pgx.QueryExecModeExec, after, cause, key).Scan(&digest, &k.Scope, &k.Operation, &k.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return k, nil
	}
	if err != nil {
		return k, explain(err)
	}
	return k, checkKey(k, digest.Bytes)
}

// listing are the statements of a page. They are planned at each call: a plan that is kept may be one for a table that was
// small, and read all of it.
type listing struct{ end, page string }

func newListing(text func(sql string) string, marks ...string) listing {
	fill := strings.NewReplacer(marks...)
	page := strings.Replace(pageSQL, "{columns}", strings.Replace(columnsSQL, "{body}", "NULL::bytea", 1), 1)
	return listing{end: text(fill.Replace(endSQL)), page: text(fill.Replace(page))}
}

const (
	// endSQL is the last row that a page looks at, if there are as many.
	endSQL = `SELECT r.key, r.scope, r.operation, r.id FROM {table} r
WHERE {place}(r.key) > {place}($1::uuid){walked} AND ($2::uuid IS NULL OR r.cause = $2::uuid)
	AND ($3::uuid IS NULL OR r.key = $3::uuid) ORDER BY {place}(r.key) LIMIT 1 OFFSET 999`

	// pageSQL goes by key, so that what changes meanwhile moves no record across a page.
	pageSQL = `WITH {clock} SELECT {columns} FROM {table} r, clock
WHERE {place}(r.key) > {place}($1::uuid) AND {place}(r.key) <= {place}($2::uuid){walked}
	AND (r.key_until <= clock.now) IS NOT TRUE AND ($3::text = '' OR r.operation = $3::text)
	AND ($4::text[] IS NULL OR r.scope = ANY ($4::text[])) AND ($5::int[] IS NULL OR ({status}) = ANY ($5::int[]))
	AND ($6::bigint = 0 OR r.updated <= clock.now - $6::bigint)
	AND ($8::uuid IS NULL OR r.cause = $8::uuid) AND ($9::uuid IS NULL OR r.key = $9::uuid)
ORDER BY {place}(r.key) LIMIT $7::bigint`
)

func records(ctx context.Context, q querier, sql string, args ...any) ([]once.Record, error) {
	rows, _ := q.Query(ctx, sql, args...) // its error is also in rows
	recs, err := pgx.CollectRows(rows, readRecord)
	return recs, explain(err)
}

// Forget drops what is past its time, at most limit records, in one statement. Records that another transaction is
// just changing are left to a later call.
//
// With Options.Partition it drops partitions in which nothing is needed any more, and moves the few records that are: so
// records are forgotten together, somewhat later than their KeepKey, and an outcome past its KeepOutcome stays on the disk
// until then, where nobody can read it. It returns limit if there were more. It needs the owner of the tables, and returns 0
// if a transaction in flight did not end within Options.PartitionWait.
func (s *Store) Forget(ctx context.Context, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	if s.partition != nil {
		return s.forgetParts(ctx, limit)
	}
	err = s.pool.QueryRow(ctx, s.sql.forget, int64(limit)).Scan(&forgotten)
	return forgotten, explain(err)
}
