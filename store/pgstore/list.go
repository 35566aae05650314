package pgstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
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

// List returns records in the order of their digests.
func (s *Store) List(ctx context.Context, q once.Query) ([]once.Record, error) {
	var after [16]byte // less than any digest
	if q.After != (once.Key{}) {
		after = q.After.UUID()
	}
	var statuses []int32 // none, and so NULL: all
	for _, status := range q.Status {
		statuses = append(statuses, int32(status))
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	return records(ctx, s.pool, s.sql.list, uuid(after), q.Operation, statuses, int64(limit))
}

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
