package pgstore

import (
	"strings"

	"github.com/effectively-once/once/store/sqlschema"
)

// statements are the SQL on records. Every parameter has an explicit cast, so
// that a statement means the same in each exec mode of pgx, whether the server
// or the client decides on types.
type statements struct {
	claimNew, claimAsync, claimNewTx, claimMany, claimManyAsync, claim string
	lock, gate, gateNew                                                string // before a claim, with partitions only
	lockMany, absent, taken, write, exist                              string // for several claims of a transaction
	open, look                                                         string // for speculation
	insertEnd, mustAmend, mustRun                                      string // for a claim that is written as it will end
	lockOne, isNew, insertLast                                         string // for a claim that is written at its end
	extend, settleOwn, settle, mustSettle                              string
	stillMoved                                                         string
	get, getMany, forget                                               string

	retentionStatements
}

// fill returns a function that replaces the marks in a statement.
func fill(n sqlschema.Names, marks []string) func(sql string) string {
	all := strings.NewReplacer(append([]string{"{table}", n.Table(), "{position}", n.Positions(), "{now}", n.Now(), "{clock}", clockSQL, "{begun}", n.Begun(), "{free}", freeSQL,
		"{columns}", columnsSQL, "{body}", bodySQL, "{status}", statusSQL, "{settling}", settlingSQL, "{nobody}", nobodySQL}, marks...)...)
	return func(sql string) string { return all.Replace(all.Replace(all.Replace(sql))) }
}

func newStatements(n sqlschema.Names, marks []string) statements {
	text := fill(n, marks)
	return statements{
		stillMoved:     text(stillMovedSQL),
		open:           text(openSQL),
		look:           text(lookSQL),
		insertEnd:      text(insertEndSQL),
		mustAmend:      text(mustAmendSQL),
		mustRun:        text(mustRunSQL),
		lockOne:        text(lockOneSQL),
		isNew:          text(isNewSQL),
		insertLast:     text(insertLastSQL),
		claimNew:       text(strings.Replace(claimNewSQL, "{lock}", lockNewSQL, 1)),
		claimAsync:     text(strings.Replace(claimNewSQL, "{lock}", lockNewSQL+asyncCommitSQL, 1)),
		claimNewTx:     text(strings.Replace(claimNewSQL, "{lock}", lockIfNewSQL, 1)),
		claimManyAsync: text(strings.Replace(claimManySQL, "{async}", asyncCommitSQL, 1)),
		claimMany:      text(strings.Replace(claimManySQL, "{async}", "", 1)),
		lockMany:       text(lockManySQL),
		absent:         text(absentSQL),
		taken:          text(takenSQL),
		exist:          text(existSQL),
		write:          text(writeSQL),
		claim:          text(claimSQL),
		extend:         text(extendSQL),
		settleOwn:      text(settleOwnSQL),
		settle:         text(settleSQL),
		mustSettle:     text(mustSettleSQL),
		get:            text(getSQL),
		getMany:        text(strings.Replace(getSQL, "= $1::uuid", "= ANY ($1::uuid[])", 1)),
		forget:         text(forgetSQL),

		retentionStatements: newRetentionStatements(text),
	}
}

const (
	// nobodySQL means no cause, in an array of UUIDs.
	nobodySQL = `'00000000-0000-0000-0000-000000000000'::uuid`

	// clockSQL is volatile, so it is read once in a statement, after the
	// snapshot was taken. All columns use that time.
	clockSQL = `clock AS (SELECT {now} AS now)`

	// statusSQL is the status that is returned. That a lease has ended or an
	// outcome has expired is not stored. Only a row that is done has an
	// outcome_until, and a key is kept at least until it was settled, which is when
	// the row was last changed: so one damaged bit does not make finished work run
	// again.
	statusSQL = `CASE WHEN (r.status = 4) <> (r.outcome_until IS NOT NULL) OR r.status = 4 AND r.key_until IS NULL
		OR r.status IN (1, 2, 3) AND r.key_until IS NOT NULL OR r.key_until < r.updated - 1000000 THEN -1
	WHEN r.status = 1 AND r.lease_until <= clock.now THEN 2
	WHEN r.status = 4 AND r.outcome_until <= clock.now THEN 5 WHEN r.status BETWEEN 0 AND 4 THEN r.status ELSE -1 END`

	// bodySQL is the outcome, unless it has expired.
	bodySQL = `CASE WHEN r.outcome_until > clock.now THEN r.outcome END`

	// columnsSQL has the columns that readRecord reads, from r and clock.
	columnsSQL = `r.key, r.scope, r.operation, r.id, ({status})::int, r.attempt, r.owner,
	CASE WHEN r.lease_until > clock.now AND r.status = 1 THEN r.lease_until - clock.now
		WHEN r.status IN (1, 2) THEN least(greatest(r.lease_until, 0) - clock.now, -1) ELSE 0 END,
	clock.now - greatest(r.created, 0), r.fingerprint, {body}, r.content_type, r.flags::int, r.sum, coalesce(r.reason, ''), r.created, r.updated, r.cause,
	coalesce(greatest(least(r.outcome_until, r.key_until), 0) - clock.now, 0)`

	// freeSQL is the condition that the claim of claimSQL may take r.
	freeSQL = `(r.scope = $2::text AND r.operation = $3::text AND r.id = $4::text AND (
		r.key_until BETWEEN r.updated - 1000000 AND (SELECT now FROM clock) OR r.outcome_until IS NULL AND r.owner <> $5::uuid AND (r.status = 0 OR
		(r.status = 2 OR r.status = 1 AND r.lease_until <= (SELECT now FROM clock)) AND r.attempt = $6::bigint))) IS TRUE`

	// refusalSQL begins the statements whose ERROR refuses a duplicate. The
	// server writes both to its log, where the text says that nothing is wrong.
	refusalSQL = `/* once: an ERROR of this statement refuses a duplicate, as it should */ `

	// A statement after which nothing else may run fails by casting one of
	// these texts to a number, because SQL has no other way to fail. The texts
	// are in CASE expressions that the planner cannot evaluate beforehand.
	keyInFlight = "once: a transaction in flight has this key"
	keyRecorded = "once: this key has a record"
	claimLost   = "once: this claim is no longer its own"
	notMoved    = "once: this transaction has not moved the position"
	otherLevel  = "once: this transaction is not read committed"

	// openSQL claims a key that was never seen, and inserts its record as it
	// will be after the commit. With any other key it fails: with keyInFlight,
	// or on the unique index if there is a row. Then the server skips what was
	// sent after it.
	openSQL = refusalSQL + `INSERT INTO {table} ({part}key, scope, operation, id, status, attempt, owner, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause)
VALUES ({insert}$1::uuid, $2::text, $3::text, $4::text, CAST(CASE WHEN pg_try_advisory_xact_lock($7::bigint{oid}) THEN '4' ELSE '` + keyInFlight + `' END AS smallint){unseen}, 1, $5::uuid, $6::bytea,
	$8::bytea, $9::text, $10::smallint, $11::bigint, {begun} + $12::bigint, {begun} + $13::bigint,
	({begun} + $14::bigint + $15::bigint - 1) / $15::bigint * $15::bigint, $16::text, {begun}, {begun}, $17::uuid)`

	// lookSQL claims a key that was never seen, without writing: openSQL
	// follows in the same transaction. It fails with keyRecorded or
	// keyInFlight. If another transaction commits a row between its snapshot
	// and its lock, openSQL fails.
	lookSQL = refusalSQL + `SELECT (SELECT CAST(CASE WHEN status >= 0 THEN '` + keyRecorded + `' END AS smallint) FROM {table} WHERE key = $1::uuid),
	CAST(CASE WHEN pg_try_advisory_xact_lock($2::bigint{oid}) THEN '1' ELSE '` + keyInFlight + `' END AS smallint)`

	// insertEndSQL is openSQL, but with any other key it does nothing, and leaves
	// the lock of one that has a row to those who may take that over.
	insertEndSQL = `INSERT INTO {table} (key, scope, operation, id, status, attempt, owner, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause)
SELECT $1::uuid, $2::text, $3::text, $4::text, 4, 1, $5::uuid, $6::bytea,
	$8::bytea, $9::text, $10::smallint, $11::bigint, {begun} + $12::bigint, {begun} + $13::bigint,
	({begun} + $14::bigint + $15::bigint - 1) / $15::bigint * $15::bigint, $16::text, {begun}, {begun}, $17::uuid
WHERE CASE WHEN EXISTS (SELECT FROM {table} WHERE key = $1::uuid) THEN false ELSE pg_try_advisory_xact_lock($7::bigint) END
ON CONFLICT (key) DO NOTHING RETURNING created`

	// mustRunSQL makes the row that insertEndSQL has inserted in the same
	// transaction that of a running claim. It fails with claimLost if there is
	// no row.
	mustRunSQL = `WITH {clock}, running AS (
	UPDATE {table} SET status = 1, lease_until = now + $3::bigint, outcome = NULL, content_type = '', flags = 0, sum = 0,
		outcome_until = NULL, key_until = NULL, reason = NULL, updated = now
	FROM clock WHERE key = $1::uuid AND owner = $2::uuid AND attempt = 1 AND status = 4 RETURNING 1)
SELECT CAST(CASE count(*) WHEN 1 THEN '1' ELSE '` + claimLost + `' END AS smallint) FROM running`

	// lockOneSQL takes the lock of a key that is free, and returns whether it
	// did. If the key has a row, it leaves the lock to those who may take that
	// over. It comes before isNewSQL, whose snapshot is then newer than the lock:
	// it sees what was committed before the lock was released.
	lockOneSQL = `SELECT CASE WHEN EXISTS (SELECT FROM {table} WHERE key = $1::uuid) THEN false ELSE pg_try_advisory_xact_lock($2::bigint) END, {begun}`

	// isNewSQL returns whether a key has no row. At an isolation level whose
	// snapshot is older than the lock, and where nothing can be written, it
	// returns false.
	isNewSQL = `SELECT NOT EXISTS (SELECT FROM {table} WHERE key = $1::uuid)
	AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') AND current_setting('transaction_read_only') = 'off'`

	// insertLastSQL inserts the record of a key whose lock the transaction
	// holds, as it will be after the commit. It fails on the unique index if
	// there is a row.
	insertLastSQL = `INSERT INTO {table} (key, scope, operation, id, status, attempt, owner, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause)
VALUES ($1::uuid, $2::text, $3::text, $4::text, 4, 1, $5::uuid, $6::bytea,
	$8::bytea, $9::text, $10::smallint, $11::bigint, {begun} + $12::bigint, {begun} + $13::bigint,
	({begun} + $14::bigint + $15::bigint - 1) / $15::bigint * $15::bigint, $16::text, $7::bigint, {begun}, $17::uuid)`

	// mustAmendSQL updates the outcome and the times of the row that openSQL or
	// insertEndSQL has inserted in the same transaction. It fails with claimLost
	// if there is no row.
	mustAmendSQL = `WITH {clock}, amended AS (
	UPDATE {table} SET outcome = $3::bytea, content_type = $4::text, flags = $5::smallint, sum = $6::bigint,
		outcome_until = now + $7::bigint, key_until = now + $8::bigint, updated = now
	FROM clock WHERE key = $1::uuid AND owner = $2::uuid AND status = 4 RETURNING 1)
SELECT CAST(CASE count(*) WHEN 1 THEN '1' ELSE '` + claimLost + `' END AS smallint) FROM amended`

	// claimNewSQL claims a key that was never seen, and that no transaction in
	// flight claims. With any other key it does nothing.
	claimNewSQL = `INSERT INTO {table} (key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, due, created, updated, cause)
SELECT $1::uuid, $2::text, $3::text, $4::text, 1, 1, $5::uuid, {begun} + $6::bigint, $7::bytea,
	({begun} + $9::bigint + $10::bigint - 1) / $10::bigint * $10::bigint, {begun}, {begun}, $11::uuid
WHERE {lock} ON CONFLICT (key) DO NOTHING RETURNING created`

	// lockNewSQL is the lock of claimNewSQL as a transaction of its own. The lock
	// ends with the statement.
	lockNewSQL = `pg_try_advisory_xact_lock($8::bigint)`

	// lockIfNewSQL is the lock of claimNewSQL in a transaction that goes on. It
	// leaves the lock of a key that has a row to those who may take that over.
	lockIfNewSQL = `CASE WHEN EXISTS (SELECT FROM {table} WHERE key = $1::uuid) THEN false ELSE pg_try_advisory_xact_lock($8::bigint) END`

	// asyncCommitSQL makes the transaction end before its commit is on the
	// disk.
	asyncCommitSQL = ` AND set_config('synchronous_commit', 'off', true) = 'off'`

	// claimManySQL is claimNewSQL for several keys.
	claimManySQL = `WITH {clock} INSERT INTO {table} (key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, due, created, updated, cause)
SELECT key, scope, operation, id, 1, 1, owner, now + lease, fingerprint, (now + keep + grain - 1) / grain * grain, now, now, nullif(cause, {nobody})
FROM clock, unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], $11::uuid[])
	AS u (key, scope, operation, id, owner, lease, fingerprint, lock, keep, grain, cause)
WHERE pg_try_advisory_xact_lock(lock){async} ON CONFLICT (key) DO NOTHING RETURNING key, created`

	// lockManySQL takes the locks of keys that are free, and returns which it
	// took. It comes before absentSQL, whose snapshot is then newer than the
	// locks: it sees what was committed before a lock was released.
	lockManySQL = `SELECT u.nth FROM unnest($1::bigint[]) WITH ORDINALITY AS u (lock, nth) WHERE pg_try_advisory_xact_lock(u.lock)`

	// absentSQL returns which keys have no row. At an isolation level whose
	// snapshot is older than the locks, it returns none. OFFSET keeps the
	// subquery from becoming a join, for which the first plans of a connection
	// would read the whole table.
	absentSQL = `SELECT u.nth, (SELECT {begun}) FROM unnest($1::uuid[]) WITH ORDINALITY AS u (key, nth)
WHERE NOT EXISTS (SELECT FROM {table} r WHERE r.key = u.key OFFSET 0)
	AND (SELECT current_setting('transaction_isolation') IN ('read committed', 'read uncommitted'))`

	// takenSQL reads records that are not free for any claim. Those that it
	// leaves out may be free, which claimSQL decides.
	takenSQL = `WITH {clock} SELECT u.nth, known.* FROM clock CROSS JOIN unnest($1::uuid[]) WITH ORDINALITY AS u (key, nth)
CROSS JOIN LATERAL (SELECT {columns} FROM {table} r WHERE r.key = u.key AND (r.key_until BETWEEN r.updated - 1000000 AND now OR r.outcome_until IS NULL AND
	(r.status IN (0, 2) OR r.status = 1 AND r.lease_until <= now)) IS NOT TRUE OFFSET 0) AS known`

	existSQL = `SELECT EXISTS (SELECT FROM {table} WHERE key = ANY ($1::uuid[]))`

	// writeSQL inserts the records of reserved keys, as they are at the end of
	// the transaction. Values that they share are sent and computed once.
	writeSQL = `WITH {clock}, ending AS MATERIALIZED (
	SELECT nth, scope, operation, status, now + lease AS lease_until, outcome, kind, flags, now + keep_outcome AS outcome_until,
		now + keep_key AS key_until, (now + due + grain - 1) / grain * grain AS due, reason, created, now AS updated
	FROM clock, unnest($7::text[], $8::text[], $9::smallint[], $10::bigint[], $11::bytea[], $12::text[], $13::smallint[], $14::bigint[],
		$15::bigint[], $16::bigint[], $17::bigint[], $18::text[], $19::bigint[]) WITH ORDINALITY
		AS e (scope, operation, status, lease, outcome, kind, flags, keep_outcome, keep_key, due, grain, reason, created, nth))
INSERT INTO {table} (key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, outcome, content_type, flags, sum,
	outcome_until, key_until, due, reason, created, updated, cause)
SELECT u.key, scope, operation, u.id, status, 1, u.owner, lease_until, u.fingerprint, outcome, kind, flags, u.sum,
	outcome_until, key_until, due, reason, created, updated, nullif(u.cause, {nobody})
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bytea[], $5::bigint[], $6::bigint[], $20::uuid[]) AS u (key, id, owner, fingerprint, sum, nth, cause)
JOIN ending USING (nth)`

	// claimSQL returns the record that the caller has now, or the one that is
	// in its way; then it writes nothing. The gate is a lock that its
	// transaction holds until it ends. If the lock is taken, a transaction is
	// in flight on the key, and the statement returns Running instead of
	// waiting for its row.
	//
	// It returns no row if the gate was open and the key was not free: then
	// another claim was committed after the snapshot of this statement was
	// taken. The unique index has found it, and the update has read the newest
	// row.
	claimSQL = `WITH {clock},
seen AS (SELECT r.*, {free} AS free FROM {table} r WHERE r.key = $1::uuid),
gate AS (SELECT pg_try_advisory_xact_lock($9::bigint) AS open WHERE NOT EXISTS (SELECT FROM seen WHERE NOT free)),
mine AS (
	INSERT INTO {table} AS r (key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, due, created, updated, cause)
	SELECT $1::uuid, $2::text, $3::text, $4::text, 1, 1, $5::uuid, now + $7::bigint, $8::bytea,
		(now + $10::bigint + $11::bigint - 1) / $11::bigint * $11::bigint, now, now, $12::uuid
	FROM clock, gate WHERE open
	ON CONFLICT (key) DO UPDATE SET status = 1, owner = excluded.owner, lease_until = excluded.lease_until,
		attempt = CASE WHEN r.key_until <= excluded.updated THEN 1 ELSE r.attempt + 1 END,
		created = CASE WHEN r.key_until <= excluded.updated THEN excluded.created ELSE r.created END,
		fingerprint = excluded.fingerprint, cause = excluded.cause, outcome = NULL, content_type = '', flags = 0, sum = 0,
		outcome_until = NULL, key_until = NULL, due = excluded.due, reason = NULL, updated = excluded.updated
	WHERE {free}
	RETURNING r.*)
SELECT {columns} FROM mine r, clock
UNION ALL SELECT {columns} FROM seen r, clock WHERE NOT r.free
UNION ALL SELECT $1::uuid, $2::text, $3::text, $4::text, 1, 0, NULL, 0, 0, NULL, NULL, '', 0, 0, '', now, now, NULL, 0
	FROM gate, clock WHERE NOT open`

	// extendSQL reads the clock for each version of the row that it meets. So a
	// lease that ends while the statement waits for the row is not extended.
	extendSQL = `UPDATE {table} SET lease_until = {now} + $4::bigint, updated = {now}
WHERE key = $1::uuid AND owner = $2::uuid AND attempt = $3::bigint AND status = 1 AND lease_until > {now}`

	// settlingSQL keeps due where the claim has set it: a change of an indexed
	// column would prevent an update in place. It keeps the owner of a key that
	// it frees, by which a repeated release is told from a stale one.
	settlingSQL = `{clock}, changed AS (
	UPDATE {table} AS r SET status = $4::smallint, lease_until = CASE WHEN $4::smallint = 2 THEN now END,
		outcome = $5::bytea, content_type = $6::text, flags = $7::smallint, sum = $8::bigint,
		outcome_until = now + $9::bigint, key_until = now + $10::bigint,
		due = CASE WHEN r.due <= now + least($9::bigint, $10::bigint) + $12::bigint THEN r.due ELSE now + least($9::bigint, $10::bigint) END,
		reason = $11::text, updated = now
	FROM clock WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint
		AND r.status IN (1, 2, 3) AND NOT (r.status = 3 AND $4::smallint = 2) RETURNING 1)`

	// settleOwnSQL settles a claim that was not settled before. It reads the
	// clock for each version of the row that it meets.
	settleOwnSQL = `UPDATE {table} AS r SET status = $4::smallint, lease_until = CASE WHEN $4::smallint = 2 THEN {now} END,
	outcome = $5::bytea, content_type = $6::text, flags = $7::smallint, sum = $8::bigint,
	outcome_until = {now} + $9::bigint, key_until = {now} + $10::bigint, due = CASE WHEN r.due <= {now} + least($9::bigint, $10::bigint) + $12::bigint THEN r.due ELSE {now} + least($9::bigint, $10::bigint) END,
	reason = $11::text, updated = {now}
WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status IN (1, 2, 3) AND NOT (r.status = 3 AND $4::smallint = 2)`

	// settleSQL counts as settled also a claim that was settled in the same way
	// before.
	settleSQL = `WITH {settling} SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM {table} r, clock
WHERE r.key = $1::uuid AND r.owner = $2::uuid AND r.attempt = $3::bigint AND r.status = $4::smallint
	AND (r.key_until > clock.now) AND (r.status = 0 OR r.status = 4 AND
		r.content_type = $6::text AND r.flags = $7::smallint AND r.sum = $8::bigint AND
		(coalesce(r.outcome, '') = coalesce($5::bytea, '') OR r.outcome_until <= clock.now)))`

	// mustSettleSQL fails with claimLost if there is no row to settle. Then the
	// server skips the COMMIT that was sent after it.
	mustSettleSQL = `WITH {settling} SELECT CAST(CASE count(*) WHEN 0 THEN '` + claimLost + `' ELSE '1' END AS smallint) FROM changed`

	// stillMovedSQL fails with notMoved in any transaction but the one that has
	// moved the position. Then the server skips the COMMIT that was sent after
	// it.
	stillMovedSQL = `SELECT CAST(CASE count(*) WHEN 0 THEN '` + notMoved + `' ELSE '1' END AS smallint) FROM {position} WHERE id = $1::uuid AND xmin = pg_current_xact_id()::xid`

	getSQL = `WITH {clock} SELECT {columns} FROM {table} r, clock
WHERE r.key = $1::uuid AND (r.key_until BETWEEN r.updated - 1000000 AND clock.now) IS NOT TRUE`

	// forgetSQL skips rows that another transaction is changing, such as
	// another call of Forget. It selects by an array, for which no plan reads
	// the whole table. A row that is not to be forgotten yet gets the time at
	// which it is, or none if it has none: its claim may have expected another
	// time. A row that is done has no lease: 0 in its place says that the
	// outcome was dropped, and was not empty.
	forgetSQL = `WITH {clock},
due AS (SELECT key FROM {table} WHERE due <= (SELECT now FROM clock) ORDER BY due LIMIT $1::bigint FOR UPDATE SKIP LOCKED),
forgotten AS (DELETE FROM {table} WHERE key = ANY (ARRAY(SELECT key FROM due)) AND key_until BETWEEN updated - 1000000 AND (SELECT now FROM clock) RETURNING 1),
kept AS (UPDATE {table} SET outcome = CASE WHEN outcome_until > (SELECT now FROM clock) THEN outcome END,
	lease_until = CASE WHEN outcome_until <= (SELECT now FROM clock) THEN 0 ELSE lease_until END,
	due = CASE WHEN outcome_until > (SELECT now FROM clock) THEN outcome_until ELSE key_until END
	WHERE key = ANY (ARRAY(SELECT key FROM due)) AND (key_until BETWEEN updated - 1000000 AND (SELECT now FROM clock)) IS NOT TRUE RETURNING 1)
SELECT (SELECT count(*) FROM forgotten) + (SELECT count(*) FROM kept)`
)
