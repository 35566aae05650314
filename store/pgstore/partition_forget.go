package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5"
)

// janitorStatements are the statements that add and drop partitions.
type janitorStatements struct {
	survey, rest, beginChange, isNewest, isPart, lockTable string
	dueParts, countPart, movePart, putOff                  string
}

func newJanitorStatements(text func(sql string) string) janitorStatements {
	return janitorStatements{
		survey: text(surveySQL), rest: text(restSQL), beginChange: text(beginChangeSQL),
		isNewest: text(isNewestSQL), isPart: text(isPartSQL), lockTable: text(lockTableSQL),
		dueParts: text(duePartsSQL), countPart: text(countPartSQL), movePart: text(movePartSQL), putOff: text(putOffSQL),
	}
}

// in returns a statement on one partition.
func (p *partitions) in(id int64, sql string) string {
	return strings.ReplaceAll(sql, "{one}", p.parted.Part(id))
}

// forget drops partitions that are due, until limit records are forgotten.
func (p *partitions) forget(ctx context.Context, limit int) (forgotten int, err error) {
	newest, err := p.rotateIfDue(ctx)
	if err != nil {
		return 0, err
	}
	if !newest.owned {
		return 0, fmt.Errorf("%w: Forget with Partition drops tables, which the role %q may not: call it as their owner %q",
			once.ErrInvalid, newest.user, newest.owner)
	}
	for id, more := int64(0), newest.mayChange; more && err == nil && forgotten < limit; { // each partition once
		var n int
		if id, err = p.duePart(ctx, id); err != nil || id == 0 {
			break
		}
		n, more, err = p.forgetPart(ctx, id, limit)
		forgotten += n
	}
	return min(forgotten, limit), err
}

// newest describes the partition that takes new rows.
type newest struct {
	id          int64
	stale       bool // it has taken new keys for long enough
	mayChange   bool // no change was given up lately
	owned       bool // user may change the table
	user, owner string
}

// rotateIfDue adds a partition if the newest one is stale.
func (p *partitions) rotateIfDue(ctx context.Context) (n newest, err error) {
	err = p.pool.QueryRow(ctx, p.janitor.survey, p.every.Microseconds(), (restFactor*p.wait).Microseconds()).
		Scan(&n.id, &n.stale, &n.mayChange, &n.owned, &n.user, &n.owner)
	if err != nil || !n.stale || !n.mayChange || !n.owned {
		return n, explain(err)
	}
	n.mayChange, err = p.changeParts(ctx, p.janitor.isNewest, n.id, p.parted.Create(n.id+1), p.parted.Attach(n.id+1))
	return n, err
}

// duePart returns the oldest partition after another that is due, or 0.
func (p *partitions) duePart(ctx context.Context, after int64) (id int64, err error) {
	err = p.pool.QueryRow(ctx, p.janitor.dueParts, after).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return id, explain(err)
}

// forgetPart drops a partition if nothing in it is needed any more. Few rows
// that are needed for long are moved to the newest partition. more is false if
// a change had to be given up.
func (p *partitions) forgetPart(ctx context.Context, id int64, limit int) (dropped int, more bool, err error) {
	has, err := p.countPart(ctx, id)
	if err == nil && has.canMove(limit) {
		if _, err = p.pool.Exec(ctx, p.in(id, p.janitor.movePart), limit); err == nil {
			has, err = p.countPart(ctx, id)
		}
	}
	if needed := has.kept+has.open > 0; err == nil && needed {
		_, err = p.pool.Exec(ctx, p.in(id, p.janitor.putOff), id, (p.every / restFactor).Microseconds(), has.few(limit))
		if err == nil {
			return 0, true, nil
		}
	}
	switch {
	case isGone(err): // another process has dropped it, between any two of these statements
		return 0, true, nil
	case err != nil:
		return 0, false, explain(err)
	}
	more, err = p.changeParts(ctx, p.janitor.isPart, id, nil, p.parted.Drop(id))
	if more {
		dropped = has.rows
	}
	return dropped, more, err
}

// content counts the rows of a partition.
type content struct {
	rows int // all of them
	kept int // whose key is not to be forgotten yet
	open int // that are not settled
}

// countPart takes no lock that claims meet. An expired row in a partition that
// is not the newest is never updated, and no row is inserted. So a partition
// that has nothing to keep stays so.
func (p *partitions) countPart(ctx context.Context, id int64) (c content, err error) {
	err = p.pool.QueryRow(ctx, p.in(id, p.janitor.countPart)).Scan(&c.rows, &c.kept, &c.open)
	return c, err
}

// few returns how many kept rows are worth moving: a small part of the
// partition, because all of them expire sooner or later.
func (c content) few(limit int) int { return min(limit, c.rows/8) }

func (c content) canMove(limit int) bool {
	return c.kept+c.open > 0 && c.kept <= c.few(limit)
}

func isGone(err error) bool { return pgerr.State(err) == pgerr.NoTable }

// changeParts runs the statements that add or drop a partition while no other
// transaction uses the table. changed is false if it had to give up, because a
// transaction in flight did not end in time or another process changes
// partitions.
func (p *partitions) changeParts(ctx context.Context, condition string, id int64, before, locked []string) (changed bool, err error) {
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, explain(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = tx.Rollback(ctx) // closes the connection if it fails
	}()
	var alone, needed bool
	if err := tx.QueryRow(ctx, p.janitor.beginChange, max(p.wait.Milliseconds(), 1)).Scan(&alone, nil); err != nil || !alone {
		return false, explain(err)
	}
	if err := tx.QueryRow(ctx, condition, id).Scan(&needed); err != nil || !needed {
		return err == nil, explain(err)
	}
	for _, statement := range append(append(before, p.janitor.lockTable), locked...) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return false, p.giveUp(ctx, tx, err)
		}
	}
	return true, explain(tx.Commit(ctx))
}

// giveUp rolls a change back. If a transaction in flight was in the way, it
// makes all processes wait before the next change.
func (p *partitions) giveUp(ctx context.Context, tx pgx.Tx, err error) error {
	if state := pgerr.State(err); state != pgerr.LockTimeout && state != pgerr.Deadlock {
		return explain(err)
	}
	if err := tx.Rollback(ctx); err != nil {
		return explain(err)
	}
	_, err = p.pool.Exec(ctx, p.janitor.rest)
	return explain(err)
}

const (
	// surveySQL describes the newest partition.
	surveySQL = `WITH {clock} SELECT n.id, now - n.begun >= $1::bigint, now - n.tried >= $2::bigint,
	pg_has_role(c.relowner, 'USAGE'), current_user::text, pg_get_userbyid(c.relowner)::text
FROM {parts} n, clock, pg_class c WHERE n.id = {newest} AND c.oid = '{table}'::regclass`

	// restSQL makes all janitors wait before the next change.
	restSQL = `UPDATE {parts} SET tried = {now} WHERE id = {newest}`

	// beginChangeSQL begins a change. One process changes partitions at a time.
	// The number is arbitrary.
	beginChangeSQL = `SELECT pg_try_advisory_xact_lock(7310579637305409395{oid}), set_config('lock_timeout', $1::bigint::text, true)`

	isNewestSQL  = `SELECT $1::bigint = {newest}`
	isPartSQL    = `SELECT $1::bigint < {newest} AND EXISTS (SELECT FROM {parts} WHERE id = $1::bigint)`
	lockTableSQL = `LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE`

	duePartsSQL = `SELECT id FROM {parts} WHERE id > $1::bigint AND id < {newest} AND due <= {now} ORDER BY id LIMIT 1`

	countPartSQL = `WITH {clock} SELECT count(*), count(*) FILTER (WHERE key_until > (SELECT now FROM clock) OR key_until < updated - 1000000),
	count(*) FILTER (WHERE key_until IS NULL) FROM {one}`

	// movePartSQL moves the rows that are still needed to the newest partition.
	// It leaves running rows with a current lease alone, which will end by
	// themselves. A statement that waits for a row that is moved finds it gone,
	// and looks again.
	movePartSQL = `WITH {clock}, picked AS (
	SELECT key FROM {one} WHERE key_until > (SELECT now FROM clock) OR key_until < updated - 1000000 OR
		key_until IS NULL AND NOT (status = 1 AND coalesce(lease_until, 0) > (SELECT now FROM clock)) LIMIT $1::bigint FOR UPDATE SKIP LOCKED),
moved AS (DELETE FROM {one} WHERE key = ANY (ARRAY(SELECT key FROM picked)) RETURNING *)
INSERT INTO {table} (part, ` + recordSQL + `) SELECT {newest}, ` + recordSQL + ` FROM moved`

	// recordSQL lists all columns of a record but part.
	recordSQL = `key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause`

	// putOffSQL sets the time at which few rows will be left that are kept, so
	// that a partition is seldom read.
	putOffSQL = `UPDATE {parts} SET due = greatest({now} + $2::bigint,
	(SELECT key_until FROM {one} WHERE key_until > {now} ORDER BY key_until DESC OFFSET $3::bigint LIMIT 1)) WHERE id = $1::bigint`
)
