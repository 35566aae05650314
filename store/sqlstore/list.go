package sqlstore

import (
	"cmp"
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
)

const defaultPage, largestPage = 100, 1000

// List returns records in the order of their digests, so that what changes meanwhile moves none across a page.
func (s *Store) List(ctx context.Context, q once.Query) ([]once.Record, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	statuses := make([]int, len(q.Status))
	for i, status := range q.Status {
		statuses[i] = int(status)
	}
	p := sqlschema.Params{"operation": q.Operation, "after": s.names.UUID(q.After.UUID()),
		"limit": int64(min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage))}
	found, err := s.rows(ctx, s.db, s.sql.List(q.Operation != "", q.After != once.Key{}, statuses), p)
	recs := make([]once.Record, len(found))
	for i, r := range found {
		recs[i] = r.record()
	}
	return recs, err
}
