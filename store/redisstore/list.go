package redisstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

const defaultPage, largestPage, maxLooks = 100, 1000, 1000

// List returns records that are Running, Unknown or Parked, by the digest of
// their keys. There is no index of the others, so a query that may select them
// is [once.ErrInvalid]: name statuses, or one key by its UUID. A page looks at
// fewer than 2,000 records.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	if q.UUID != [16]byte{} {
		return s.listOne(ctx, q)
	}
	isOther := func(is once.Status) bool { return is < once.Running || is > once.Parked }
	if len(q.Status) == 0 || slices.ContainsFunc(q.Status, isOther) {
		return page, fmt.Errorf("%w: redisstore lists only records that are running, unknown or parked: ask for these statuses",
			once.ErrInvalid)
	}
	if err := s.ready(ctx); err != nil {
		return page, err
	}
	after := ""
	if q.After != (once.Key{}) {
		after = digest(q.After.UUID())
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	batch := max(limit, defaultPage) // a small page may have to look at many records
	for looks := 0; ; {
		ids, bad, err := s.openAfter(ctx, after, batch)
		if err != nil {
			return page, err
		}
		page.Damaged = append(page.Damaged, bad...)
		recs, damaged, err := s.all(ctx, ids)
		if err != nil {
			return page, err
		}
		page.Damaged = append(page.Damaged, damaged...)
		for _, rec := range recs {
			if rec.Attempt == 0 {
				continue // deleted by hand, and no longer among the open ones
			}
			if page.Next = rec.Key; selects(q, rec) {
				page.Records = append(page.Records, rec)
			}
			if len(page.Records) == limit {
				return page, nil
			}
		}
		if len(ids) < batch {
			page.Next = once.Key{}
			return page, nil
		}
		after = digest(ids[len(ids)-1])
		if looks += len(ids); looks >= maxLooks && page.Next != (once.Key{}) {
			return page, nil
		}
	}
}

// listOne lists at most one record.
func (s *Store) listOne(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	rec, err := s.record(ctx, s.scripts.get, q.UUID)
	if errors.Is(err, once.ErrCorrupt) {
		page.Damaged = []error{err}
		return page, nil
	}
	after := q.After.UUID()
	if err != nil || rec.Attempt == 0 || q.After != (once.Key{}) && string(q.UUID[:]) <= string(after[:]) {
		return page, err
	}
	if rec.Outcome.Body = nil; selects(q, rec) {
		page.Records = []once.Record{rec}
	}
	return page, nil
}

func selects(q once.RecordQuery, rec once.Record) bool {
	return (q.Operation == "" || q.Operation == rec.Key.Operation) && (q.Cause == [16]byte{} || q.Cause == rec.Cause) &&
		(len(q.Scopes) == 0 || slices.Contains(q.Scopes, rec.Key.Scope)) &&
		(len(q.Status) == 0 || slices.Contains(q.Status, rec.Status)) &&
		(q.Unchanged <= 0 || rec.Age-rec.Updated.Sub(rec.Created) >= q.Unchanged)
}

// openAfter returns the digests of open records after one, up to limit, and what
// is among them and is none.
func (s *Store) openAfter(ctx context.Context, after string, limit int) (ids [][16]byte, damaged []error, err error) {
	first, least := 0, "-"
	if after != "" {
		n, _ := hex.DecodeString(after[:2])
		first, least = int(n[0]), "("+after
	}
	counts, err := pipelined(ctx, s, partitions-first, func(p redis.Pipeliner, i int) *redis.IntCmd {
		return p.ZCard(ctx, s.open(first+i))
	})
	if err != nil {
		return nil, nil, err
	}
	var filled []int
	for i, n := range counts {
		if n.Val() > 0 {
			filled = append(filled, first+i)
		}
	}
	for len(filled) > 0 && len(ids) < limit {
		some := filled[:min(len(filled), 16)]
		filled = filled[len(some):]
		members, err := pipelined(ctx, s, len(some), func(p redis.Pipeliner, i int) *redis.StringSliceCmd {
			from := "-"
			if some[i] == first {
				from = least
			}
			return p.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.open(some[i]), ByLex: true, Start: from, Stop: "+", Count: int64(limit)})
		})
		if err != nil {
			return nil, nil, err
		}
		for _, m := range members {
			for _, text := range m.Val() {
				digest, err := hex.DecodeString(text)
				if err != nil || len(digest) != len([16]byte{}) {
					damaged = append(damaged, fmt.Errorf("%w: the open records have the member %.40q, which is no digest", once.ErrCorrupt, text))
					continue
				}
				ids = append(ids, [16]byte(digest))
			}
		}
	}
	return ids[:min(len(ids), limit)], damaged, nil
}

// all returns the records of digests that are among the open ones, in one round
// trip to each server if it knows the script, and two if not. It removes those
// without a record, and returns why others cannot be read.
func (s *Store) all(ctx context.Context, ids [][16]byte) (recs []once.Record, damaged []error, err error) {
	run := func(script func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) ([]*redis.Cmd, error) {
		return pipelined(ctx, s, len(ids), func(p redis.Pipeliner, i int) *redis.Cmd {
			return script(ctx, p, s.keys(ids[i]), digest(ids[i]))
		})
	}
	rows, _ := run(s.scripts.open.EvalSha) // each has its error
	if slices.ContainsFunc(rows, func(row *redis.Cmd) bool { return redis.HasErrorPrefix(row.Err(), "NOSCRIPT") }) {
		rows, _ = run(s.scripts.open.Eval)
	}
	recs = make([]once.Record, len(ids))
	for i := range ids {
		row, err := rows[i].StringSlice()
		if err == nil {
			recs[i], err = readRecord(row, ids[i])
		}
		if err = explain(err); errors.Is(err, once.ErrCorrupt) {
			recs[i] = once.Record{}
			damaged = append(damaged, err)
		} else if err != nil {
			return nil, nil, err
		}
	}
	return recs, damaged, nil
}

// pipelined sends n commands together, and returns their results. They are not
// answered by a replica, because PERSIST, which changes nothing, is a write.
func pipelined[C redis.Cmder](ctx context.Context, s *Store, n int, add func(redis.Pipeliner, int) C) ([]C, error) {
	cmds := make([]C, n)
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Persist(ctx, s.open(0))
		for i := range cmds {
			cmds[i] = add(p, i)
		}
		return nil
	})
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return cmds, explain(err)
}
