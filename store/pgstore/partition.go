package pgstore

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// partitioned is what a store that forgets by dropping partitions knows of them. Which there are, it reads in each
// statement.
type partitioned struct {
	names sqlschema.Partitioned
	every time.Duration // a partition takes new keys
	wait  time.Duration // for the lock to add or to drop one
}

// defaultWait is of Options.PartitionWait. A change that had to be given up is not tried again for restFactor times as
// long, so that it takes no more than a twentieth of the time of the claims.
const (
	defaultWait = 50 * time.Millisecond
	restFactor  = 20
)

// newPartitioned returns nil where the options ask for no partitions.
func newPartitioned(n sqlschema.Names, o *Options) (*partitioned, error) {
	switch {
	case o.Partition < 0 || o.PartitionWait < 0:
		return nil, fmt.Errorf("%w: Partition is %v and PartitionWait %v: a time is not negative", once.ErrInvalid, o.Partition, o.PartitionWait)
	case o.Partition == 0:
		return nil, nil
	case o.Isolation != "" && o.Isolation != pgx.ReadCommitted:
		return nil, wrongLevel(string(o.Isolation))
	}
	return &partitioned{names: n.Partitioned(), every: o.Partition, wait: cmp.Or(o.PartitionWait, defaultWait)}, nil
}

func wrongLevel(level string) error {
	return fmt.Errorf("%w: the isolation level of the transaction is %q, but in a store with Partition it has to be %q: the "+
		"snapshot of any other is older than the lock of a key, and may miss its record. Set Options.Isolation for DoTx, "+
		"default_transaction_isolation for other calls, or begin your own transaction with it", once.ErrInvalid, level, pgx.ReadCommitted)
}

// lock is the number of the advisory lock of a key, as the statements of this store take it.
func (s *Store) lock(key [16]byte) int64 {
	if s.partition != nil {
		return s.partition.names.Lock(key)
	}
	return s.names.Lock(key)
}

// wholeMarks are what the marks for partitions stand for in statements on a table that has none.
func wholeMarks() []string {
	return []string{"{part}", "", "{insert}", "", "{oid}", "", "{unseen}", ""}
}

func (p *partitioned) marks() []string {
	return []string{"{part}", "part, ", "{insert}", newestSQL + ", ", "{newest}", newestSQL, "{parts}", p.names.Parts(), "{oid}", " # " + p.names.OID(), "{unseen}", unseenSQL}
}

// statements are those of a table with partitions.
func (p *partitioned) statements() statements {
	text := fill(p.names.Names, p.marks())
	st := newStatements(p.names.Names, p.marks())
	st.lock, st.gate, st.gateNew = text(lockSQL), text(gateSQL), text(gateNewSQL)
	st.claim = text(claimInPartsSQL)
	st.claimNew, st.claimAsync = text(claimNewestSQL), text(claimNewestSQL+asyncCommitSQL+` RETURNING created`)
	st.claimNew += ` RETURNING created`
	st.survey, st.rest, st.janitor = text(surveySQL), text(restSQL), text(janitorSQL)
	st.isNewest, st.isPart, st.lockTable = text(isNewestSQL), text(isPartSQL), text(lockTableSQL)
	st.reopen = text(reopenInPartsSQL)
	st.dueParts, st.countPart, st.movePart, st.putOff = text(duePartsSQL), text(countPartSQL), text(movePartSQL), text(putOffSQL)
	return st
}

// in is a statement on one partition.
func (p *partitioned) in(id int64, sql string) string {
	return strings.ReplaceAll(sql, "{one}", p.names.Part(id))
}

const (
	// newestSQL is the partition that takes new rows. Where the table is locked, as by any statement that writes to it, no
	// other can become that before the transaction ends.
	newestSQL = `(SELECT max(id) FROM {parts})`

	// unseenSQL is 0, and fails with keyRecorded where there is a row in any partition.
	unseenSQL = ` + coalesce((SELECT CAST(CASE WHEN u.status >= 0 THEN '` + keyRecorded + `' END AS smallint) FROM {table} u WHERE u.key = $1::uuid), 0)`

	// levelSQL is the isolation level that the transaction has.
	levelSQL = `current_setting('transaction_isolation')`

	// lockSQL takes the lock of a key in front of openSQL or lookSQL, whose snapshot is newer then. It fails with
	// keyInFlight, or with otherLevel in another isolation level.
	lockSQL = `SELECT CAST(CASE WHEN pg_try_advisory_xact_lock($1::bigint{oid}) THEN '1' ELSE '` + keyInFlight + `' END AS smallint),
	CAST(CASE ` + levelSQL + ` WHEN 'read committed' THEN '1' ELSE '` + otherLevel + `' END AS smallint)`

	// gateNewSQL takes the lock of a key, if it is to be had, and leaves that word to the next statement in a setting that
	// ends with the transaction. So nothing fails, and no answer has to be waited for in between.
	gateNewSQL = `SELECT ` + levelSQL + `, set_config('once.gate', CASE WHEN ` + levelSQL + ` <> 'read committed' THEN ''
	WHEN pg_try_advisory_xact_lock($1::bigint{oid}) THEN ($1::bigint{oid})::text ELSE 'busy' END, true)`

	// gateSQL is gateNewSQL for a key that may be known: where its record is nobody's to take, it takes no lock.
	gateSQL = `WITH {clock} SELECT ` + levelSQL + `, set_config('once.gate', CASE WHEN ` + levelSQL + ` <> 'read committed' THEN ''
	WHEN EXISTS (SELECT FROM {table} r WHERE r.key = $1::uuid AND NOT {free}) THEN ''
	WHEN pg_try_advisory_xact_lock($7::bigint{oid}) THEN ($7::bigint{oid})::text ELSE 'busy' END, true)`

	// claimNewestSQL is the claim of a key that was never seen, behind gateNewSQL. It does nothing with any other.
	claimNewestSQL = `INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, created, updated, cause)
SELECT {insert}$1::uuid, $2::text, $3::text, $4::text, 1, 1, $5::uuid, {begun} + $6::bigint, $7::bytea, {begun}, {begun}, $9::uuid
WHERE current_setting('once.gate', true) = ($8::bigint{oid})::text AND NOT EXISTS (SELECT FROM {table} u WHERE u.key = $1::uuid)`

	// claimInPartsSQL is what claimSQL is elsewhere, behind gateSQL. A row that is free is not updated but exchanged for one in
	// the newest partition: what is past its time in an older one has to stay so. No row at all: the record has changed
	// since it was looked at.
	claimInPartsSQL = `WITH {clock},
seen AS (SELECT r.*, {free} AS free FROM {table} r WHERE r.key = $1::uuid),
gate AS (SELECT current_setting('once.gate', true) AS word),
freed AS (DELETE FROM {table} r WHERE r.key = $1::uuid AND {free} AND current_setting('once.gate', true) = ($9::bigint{oid})::text
	RETURNING r.attempt, r.created, r.key_until),
mine AS (
	INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, created, updated, cause)
	SELECT {insert}$1::uuid, $2::text, $3::text, $4::text, 1, CASE WHEN f.key_until <= now THEN 1 ELSE coalesce(f.attempt, 0) + 1 END,
		$5::uuid, now + $7::bigint, $8::bytea, CASE WHEN f.key_until <= now THEN now ELSE coalesce(f.created, now) END, now, $10::uuid
	FROM clock CROSS JOIN gate LEFT JOIN freed f ON true
	WHERE gate.word = ($9::bigint{oid})::text AND (f.attempt IS NOT NULL OR NOT EXISTS (SELECT FROM seen))
	RETURNING *)
SELECT {columns} FROM mine r, clock
UNION ALL SELECT {columns} FROM seen r, clock WHERE NOT r.free
UNION ALL SELECT $1::uuid, $2::text, $3::text, $4::text, 1, 0, NULL, 0, 0, NULL, NULL, '', 0, 0, '', now, now, NULL
	FROM gate, clock WHERE word = 'busy' AND NOT EXISTS (SELECT FROM seen WHERE NOT free)`

	surveySQL = `WITH {clock} SELECT n.id, now - n.begun >= $1::bigint, now - n.tried >= $2::bigint,
	pg_has_role(c.relowner, 'USAGE'), current_user::text, pg_get_userbyid(c.relowner)::text
FROM {parts} n, clock, pg_class c WHERE n.id = {newest} AND c.oid = '{table}'::regclass`

	// restSQL is for all janitors.
	restSQL = `UPDATE {parts} SET tried = {now} WHERE id = {newest}`

	// janitorSQL is the beginning of a change, of which there is one at a time. The number is arbitrary.
	janitorSQL = `SELECT pg_try_advisory_xact_lock(7310579637305409395{oid}), set_config('lock_timeout', $1::bigint::text, true)`

	isNewestSQL  = `SELECT $1::bigint = {newest}`
	isPartSQL    = `SELECT $1::bigint < {newest} AND EXISTS (SELECT FROM {parts} WHERE id = $1::bigint)`
	lockTableSQL = `LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE`

	duePartsSQL = `SELECT id FROM {parts} WHERE id > $1::bigint AND id < {newest} AND due <= {now} ORDER BY id LIMIT 1`

	countPartSQL = `WITH {clock} SELECT count(*), count(*) FILTER (WHERE key_until > (SELECT now FROM clock)),
	count(*) FILTER (WHERE key_until IS NULL) FROM {one}`

	// movePartSQL leaves those alone who are at work, and hold an unexpired lease: they will end by themselves. What waits for
	// a row that it moves finds it gone, and looks again.
	movePartSQL = `WITH {clock}, picked AS (
	SELECT key FROM {one} WHERE key_until > (SELECT now FROM clock) OR
		key_until IS NULL AND NOT (status = 1 AND coalesce(lease_until, 0) > (SELECT now FROM clock)) LIMIT $1::bigint FOR UPDATE SKIP LOCKED),
moved AS (DELETE FROM {one} WHERE key = ANY (ARRAY(SELECT key FROM picked)) RETURNING *)
INSERT INTO {table} (part, ` + recordSQL + `) SELECT {newest}, ` + recordSQL + ` FROM moved`

	// recordSQL are all columns of a record but part.
	recordSQL = `key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause`

	// putOffSQL says when few rows will be left that are kept, so that a partition is read seldom.
	putOffSQL = `UPDATE {parts} SET due = greatest({now} + $2::bigint,
	(SELECT key_until FROM {one} WHERE key_until > {now} ORDER BY key_until DESC OFFSET $3::bigint LIMIT 1)) WHERE id = $1::bigint`
)
