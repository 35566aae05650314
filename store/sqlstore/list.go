package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
)

const defaultPage, largestPage = 100, 1000

// List returns records in the order of their digests, so that what changes meanwhile moves none across a page. A page
// looks at 1,000 rows at most: of those that are running, unknown or parked, if no others are asked for; of those of the
// operation, if there is one and the dialect is not PostgreSQL; or of all.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	if err := s.ready(ctx, s.db); err != nil {
		return page, err
	}
	l := sqlschema.Listing{Operation: q.Operation != "", Scopes: len(q.Scopes), Unchanged: q.Unchanged > 0,
		Cause: q.Cause != [16]byte{}, UUID: q.UUID != [16]byte{}}
	for _, status := range q.Status {
		l.Statuses = append(l.Statuses, int(status))
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	p := sqlschema.Params{"operation": q.Operation, "after": s.names.UUID(after(q)), "until": s.names.UUID(lastUUID),
		"unchanged": q.Unchanged.Microseconds(), "limit": int64(limit),
		"caused": s.names.UUID(q.Cause), "uuid": s.names.UUID(q.UUID)}
	for i, scope := range q.Scopes {
		p[fmt.Sprint("scope", i)] = scope
	}
	end, records := s.sql.List(l)
	if page.Next, err = s.endOf(ctx, end, p); err != nil {
		return page, err
	}
	if page.Next != (once.Key{}) {
		p["until"] = s.names.UUID(page.Next.UUID())
	}
	found, err := s.rows(ctx, s.db, records, p)
	if err != nil {
		return once.RecordPage{}, err
	}
	for _, r := range found {
		page.Records = append(page.Records, r.record())
	}
	if len(found) == limit {
		page.Next = found[limit-1].Key
	}
	return page, nil
}

var lastUUID = [16]byte(slices.Repeat([]byte{255}, 16))

func after(q once.RecordQuery) (digest [16]byte) {
	if q.After != (once.Key{}) {
		digest = q.After.UUID()
	}
	return digest
}

// endOf is the key of the last row that a page looks at: the zero Key if there are fewer.
func (s *Store) endOf(ctx context.Context, st sqlschema.Statement, p sqlschema.Params) (k once.Key, err error) {
	var digest []byte
	err = s.db.QueryRowContext(ctx, st.Text, st.Args(p)...).Scan(&digest, &k.Scope, &k.Operation, &k.ID)
	if errors.Is(err, sql.ErrNoRows) {
		return k, nil
	}
	if err != nil {
		return k, s.fail(err)
	}
	return k, checkKey(k, digest)
}
