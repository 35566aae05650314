package pgstore

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// Get returns the record of a key as it is now. It does not see the writes of
// open transactions.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	return s.record(ctx, s.pool, k)
}

// GetMany is Get for each key, in their order, in one statement.
func (s *Store) GetMany(ctx context.Context, keys []once.Key) ([]once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	ids, at := make(uuidArray, len(keys)), make(map[once.Key]int, len(keys))
	for i, k := range keys {
		ids[i], at[k] = k.UUID(), i
	}
	found, err := readRecords(ctx, s.pool, s.sql.getMany, ids)
	if err != nil {
		return nil, err
	}
	recs := make([]once.Record, len(keys))
	for _, rec := range found {
		recs[at[rec.Key]] = rec
	}
	for i, k := range keys { // one that is there twice
		recs[i] = recs[at[k]]
	}
	return recs, nil
}

func (s *Store) record(ctx context.Context, q querier, k once.Key) (once.Record, error) {
	recs, err := readRecords(ctx, q, s.sql.get, uuid(k.UUID()))
	if err != nil || len(recs) == 0 {
		return once.Record{}, err
	}
	return recs[0], nil
}

// List returns records in the order of the digests of their keys. A page reads
// at most 1,000 rows: of those with the cause if the query asks for one, else
// of those that are running, unknown or parked if the query asks for no others,
// else of all.
func (s *Store) List(ctx context.Context, query once.RecordQuery) (page once.RecordPage, err error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return page, err
	}
	page, err = s.shared.Page(ctx, unprepared{client{s.pool}}, query)
	return page, explain(err)
}

// FindIDs returns keys whose ID contains part, in no order. It reads the whole table
// of records.
func (s *Store) FindIDs(ctx context.Context, part string, limit int) ([]once.Key, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	found, err := s.shared.IDs(ctx, unprepared{client{s.pool}}, part, limit)
	return found, explain(err)
}

// unprepared plans each query anew. The plan of a prepared statement may be one
// for a table that was small, and read all of it.
type unprepared struct{ client }

func (u unprepared) Query(ctx context.Context, query string, args ...any) (sqlschema.Rows, error) {
	return u.client.Query(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
}

func readRecords(ctx context.Context, q querier, sql string, args ...any) ([]once.Record, error) {
	rows, _ := q.Query(ctx, sql, args...) // its error is also in rows
	recs, err := pgx.CollectRows(rows, readRecord)
	return recs, explain(err)
}

// Forget deletes keys and outcomes that are past their time, those of limit
// records at most, in one statement. It skips records that another transaction
// is changing.
//
// With Options.Partition it drops partitions whose records are no longer
// needed, after it has moved the few that are. So records are forgotten
// together, somewhat later than their KeepKey. An outcome past its KeepOutcome
// remains on disk until then, where nobody can read it. Forget returns limit if
// there are more. Its role must own the tables. It returns 0 if an open
// transaction does not end within Options.PartitionWait.
func (s *Store) Forget(ctx context.Context, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	return s.records.forget(ctx, limit)
}
