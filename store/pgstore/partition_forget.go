package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// forgetParts is Forget where partitions are dropped.
func (s *Store) forgetParts(ctx context.Context, limit int) (forgotten int, err error) {
	newest, err := s.rotateIfDue(ctx)
	if err != nil {
		return 0, err
	}
	if !newest.owned {
		return 0, fmt.Errorf("%w: Forget with Partition drops tables, which %q may not: call it as %q, who owns them",
			once.ErrInvalid, newest.user, newest.owner)
	}
	for id, more := int64(0), newest.rested; more && err == nil && forgotten < limit; { // each partition once
		var n int
		if id, err = s.duePart(ctx, id); err != nil || id == 0 {
			break
		}
		n, more, err = s.forgetPart(ctx, id, limit)
		forgotten += n
	}
	return min(forgotten, limit), err
}

// newest is the partition that takes new rows, as a janitor looks at it.
type newest struct {
	id                   int64
	stale, rested, owned bool
	user, owner          string
}

// rotateIfDue adds a partition when the newest has had its time.
func (s *Store) rotateIfDue(ctx context.Context) (n newest, err error) {
	p := s.partition
	err = s.pool.QueryRow(ctx, s.sql.survey, p.every.Microseconds(), (restFactor*p.wait).Microseconds()).
		Scan(&n.id, &n.stale, &n.rested, &n.owned, &n.user, &n.owner)
	if err != nil || !n.stale || !n.rested || !n.owned {
		return n, explain(err)
	}
	n.rested, err = s.changeParts(ctx, s.sql.isNewest, n.id, p.names.Create(n.id+1), p.names.Attach(n.id+1))
	return n, err
}

// duePart is the oldest partition behind another whose time has come; 0: there is none.
func (s *Store) duePart(ctx context.Context, after int64) (id int64, err error) {
	err = s.pool.QueryRow(ctx, s.sql.dueParts, after).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return id, explain(err)
}

// forgetPart drops a partition if nothing in it is still needed. What is needed for long is moved to the newest partition,
// as long as it is not much. There is no more to do if a change had to be given up.
func (s *Store) forgetPart(ctx context.Context, id int64, limit int) (dropped int, more bool, err error) {
	has, err := s.countPart(ctx, id)
	if err == nil && has.canMove(limit) {
		if _, err = s.pool.Exec(ctx, s.partition.in(id, s.sql.movePart), limit); err == nil {
			has, err = s.countPart(ctx, id)
		}
	}
	switch {
	case isGone(err): // another janitor was faster
		return 0, true, nil
	case err != nil:
		return 0, false, explain(err)
	case has.kept+has.open > 0:
		_, err = s.pool.Exec(ctx, s.partition.in(id, s.sql.putOff), id, (s.partition.every / restFactor).Microseconds(), has.few(limit))
		return 0, err == nil, explain(err)
	}
	more, err = s.changeParts(ctx, s.sql.isPart, id, nil, s.partition.names.Drop(id))
	if more {
		dropped = has.rows
	}
	return dropped, more, err
}

// content is what a partition has: rows in all, those whose key is kept for some time yet, and those that are not settled.
type content struct{ rows, kept, open int }

// countPart takes no lock that anybody meets. What is past its time in a partition that is not the newest is never
// updated and nothing is added to it, so what this finds to be over is over for good.
func (s *Store) countPart(ctx context.Context, id int64) (c content, err error) {
	err = s.pool.QueryRow(ctx, s.partition.in(id, s.sql.countPart)).Scan(&c.rows, &c.kept, &c.open)
	return c, err
}

// few is how many rows that are kept are worth moving: they would have their time sooner or later, and most are in
// company.
func (c content) few(limit int) int { return min(limit, c.rows/8) }

func (c content) canMove(limit int) bool {
	return c.kept+c.open > 0 && c.kept <= c.few(limit)
}

func isGone(err error) bool { return sqlState(err) == "42P01" }

// changeParts runs what adds or drops a partition while nobody else uses the table. It reports false if it had to give up,
// because a transaction in flight did not end in time or another janitor is at it.
func (s *Store) changeParts(ctx context.Context, condition string, id int64, before, locked []string) (changed bool, err error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, explain(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = tx.Rollback(ctx) // the connection is closed if it fails
	}()
	var alone, needed bool
	if err := tx.QueryRow(ctx, s.sql.janitor, max(s.partition.wait.Milliseconds(), 1)).Scan(&alone, nil); err != nil || !alone {
		return false, explain(err)
	}
	if err := tx.QueryRow(ctx, condition, id).Scan(&needed); err != nil || !needed {
		return err == nil, explain(err)
	}
	for _, statement := range append(append(before, s.sql.lockTable), locked...) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return false, s.giveUp(ctx, tx, err)
		}
	}
	return true, explain(tx.Commit(ctx))
}

// giveUp ends a change, and lets the claims of everybody rest from it, if that was because of a transaction in flight.
func (s *Store) giveUp(ctx context.Context, tx pgx.Tx, err error) error {
	if sqlState(err) != "55P03" && sqlState(err) != "40P01" { // lock not available, deadlock
		return explain(err)
	}
	if err := tx.Rollback(ctx); err != nil {
		return explain(err)
	}
	_, err = s.pool.Exec(ctx, s.sql.rest)
	return explain(err)
}
