package sqlstore

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
)

// List returns records in the order of the digests of their keys. A page reads at
// most 1,000 rows: of those that are running, unknown or parked if the query asks
// for no others, else of those of its operation if the dialect has an index for
// that, else of all.
func (s *Store) List(ctx context.Context, query once.RecordQuery) (page once.RecordPage, err error) {
	err = access{s.database}.Read(ctx, func(q sqlschema.Querier) error {
		page, err = s.sql.Page(ctx, q, query)
		return err
	})
	return page, err
}

// FindIDs returns keys whose ID contains part, in no order. It reads the whole table
// of records.
func (s *Store) FindIDs(ctx context.Context, part string, limit int) (found []once.Key, err error) {
	err = access{s.database}.Read(ctx, func(q sqlschema.Querier) error {
		found, err = s.sql.IDs(ctx, q, part, limit)
		return err
	})
	return found, err
}
