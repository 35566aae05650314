// Package records has the statements on the table of records for the store
// behind database/sql, written once for all dialects.
package records

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/store/sqlschema"
)

// Statements has the statements of one store.
type Statements struct {
	InsertNew sqlschema.Statement // in PostgreSQL: claims a new key and returns the time; with any other key it returns no row
	Insert    sqlschema.Statement // inserts the row of a claim, see ClaimsAtOnce
	InsertOwn sqlschema.Statement // in MySQL: Insert that leaves the time in LAST_INSERT_ID
	Take      sqlschema.Statement // takes over a free key whose row exists, see ClaimsAtOnce

	Get       sqlschema.Statement
	GetMany   sqlschema.Statement // Get of any of the keys @key0 and so on, [ManyKeys] of them
	FindIDs   sqlschema.Statement // keys whose ID contains @id
	GetLocked sqlschema.Statement // Get inside a transaction, without its snapshot
	GetNoWait sqlschema.Statement // in MySQL, fails if another transaction has locked the row

	Extend    sqlschema.Statement
	Settle    sqlschema.Statement
	SettleOwn sqlschema.Statement // Settle of a claim made in this transaction, which the database checks if it can
	Reopen    sqlschema.Statement

	Forget sqlschema.Statement // deletes due rows whose keys are past their time
	Expire sqlschema.Statement // drops the outcomes of other due rows
	Due    sqlschema.Statement // reads due rows
	PutOff sqlschema.Statement // corrects due in rows that have nothing to forget yet; empty if no claim sets due

	names   sqlschema.Names
	compile func(text string) sqlschema.Statement
	marks   []string
	dialect sqlschema.Dialect
}

// New compiles the statements. A store does that once.
func New(n sqlschema.Names) *Statements {
	st := &Statements{names: n, marks: marks(n), dialect: n.Dialect()}
	st.compile = n.Compiler(st.marks...)
	st.Insert, st.Take = st.compile(insertSQL), st.compile(takeSQL)
	st.Get, st.Extend, st.Settle = st.compile(getSQL), st.compile(extendSQL), st.compile(settleSQL)
	st.GetNoWait, st.GetMany, st.FindIDs = st.Get, st.compile(getManySQL()), st.compile(findIDsSQL(st.dialect))
	st.GetLocked, st.Forget, st.Expire = st.Get, st.compile(forgetSQL), st.compile(expireSQL)
	st.Due, st.Reopen, st.SettleOwn = st.compile(dueRecordsSQL), st.compile(reopenSQL), st.Settle
	switch st.dialect {
	case sqlschema.PostgreSQL:
		st.Insert, st.Expire = st.compile(claimPostgreSQL), st.compile(laterSQL)
		st.Due, st.PutOff = st.compile(dueRecordsPostgreSQL), st.compile(putOffSQL)
		st.InsertNew, st.SettleOwn = st.compile(insertNewSQL), st.compile(begun(settleSQL+ownPostgreSQL))
	case sqlschema.SQLite:
		st.Insert = st.compile(insertSQL + " ON CONFLICT DO NOTHING")
	case sqlschema.MySQL:
		st.GetLocked = st.compile(getSQL + " LOCK IN SHARE MODE") // else REPEATABLE READ shows an old snapshot
		st.GetNoWait = st.compile(getSQL + " FOR UPDATE NOWAIT")
		st.Forget, st.Expire = st.compile(forgetMySQL), st.compile(expireMySQL)
		st.InsertOwn = st.compile(strings.Replace(insertSQL, "{now}, {now})", "LAST_INSERT_ID({now}), {now})", 1))
	case sqlschema.SQLServer:
		st.inTransactSQL()
	}
	return st
}

// ManyKeys is how many records GetMany reads. Each may have a large outcome.
const ManyKeys = 16

// getManySQL is getSQL for several keys.
func getManySQL() string {
	keys := make([]string, ManyKeys)
	for i := range keys {
		keys[i] = fmt.Sprintf("@key%d", i)
	}
	return strings.Replace(getSQL, "= @key", "IN ("+strings.Join(keys, ", ")+")", 1)
}

// begun returns a statement that takes the time at which it arrived, because it
// waits for nothing.
func begun(text string) string {
	text = strings.ReplaceAll(text, "{due at}", dueAtSQL)
	return strings.NewReplacer("{with} ", "", "{now}", "{begun}").Replace(text)
}

// ClaimsAtOnce reports whether Insert is a whole claim: it also takes over a
// free key, and returns the row that has the key. It returns no row if another
// claim won a race, and a row with attempt 0 if an open transaction has claimed
// the key.
func (st *Statements) ClaimsAtOnce() bool {
	return st.dialect == sqlschema.PostgreSQL || st.dialect == sqlschema.SQLServer
}

// marks are the names of tables and indexes, parts of statements, and what the
// dialects spell differently in these statements.
func marks(n sqlschema.Names) []string {
	marks := []string{"{table}", n.Table(), "{due index}", n.Index("record_due"), "{operation index}", n.Index("record_operation"),
		"{cause index}", n.Index("record_cause"), "{status}", statusSQL, "{damaged}", damagedSQL, "{known}", knownSQL, "{free}", freeSQL,
		"{claimed}", claimedSQL, "{columns}", columnsSQL,
		"{fingerprint}", n.Dialect().Bytes("r.fingerprint", "fingerprint"), "{outcome at all}", n.Dialect().Bytes("r.outcome", "outcome"),
		"{outcome}", n.Dialect().Bytes("CASE WHEN r.outcome_until > {now} THEN r.outcome END", "outcome"), "{rows}", dueSQL,
		"{lease left}", sqlschema.Until("r.lease_until"), "{age}", sqlschema.Since("r.created"),
		"{key left}", sqlschema.Until("r.key_until"), "{outcome left}", sqlschema.Until("r.outcome_until")}
	if n.Dialect() != sqlschema.PostgreSQL {
		marks = append(marks, "{foreseen}", "NULL", "{due at}", "{now} + @due", "{open}", "r.due IS NULL")
	}
	if n.Dialect() == sqlschema.SQLServer {
		return append(marks, marksSQLServer...)
	}
	marks = append(marks, "{target}", "{table} AS r", "{from}", "", "{asked}", "r.operation = @operation",
		"{last}", fmt.Sprintf(" LIMIT %d OFFSET %s", endRows, passedOver), "{past locks}", "")
	switch n.Dialect() {
	case sqlschema.PostgreSQL:
		return append(marks, "{foreseen}", foreseenSQL, "{due at}", dueAtSQL, "{open}", "r."+sqlschema.OpenSQL,
			"{by key}", "", "{due}", "{with}, due AS ({rows})", "{in}", "= ANY (ARRAY(SELECT k FROM due))",
			"{locked}", " FOR UPDATE SKIP LOCKED")
	case sqlschema.MySQL:
		return append(marks, "{by key}", " FORCE INDEX (PRIMARY)", "{locked}", " FOR UPDATE SKIP LOCKED")
	}
	return append(marks, "{by key}", "", "{due}", "WITH due AS ({rows})", "{in}", "IN (SELECT k FROM due)", "{locked}", "")
}

const (
	// statusSQL returns -1 for a status that is never written. A 5, for
	// example, would read as expired. Only done records have outcome_until,
	// which is checked: so one damaged bit does not make finished work run
	// again.
	statusSQL = `CASE WHEN {damaged} THEN -1 WHEN r.status = 1 AND r.lease_until <= {now} THEN 2 WHEN r.status = 4 AND r.outcome_until <= {now} THEN 5
	WHEN r.status BETWEEN 0 AND 4 THEN r.status ELSE -1 END`

	damagedSQL = `(r.status <> 4 AND r.outcome_until IS NOT NULL OR r.status = 4 AND r.outcome_until IS NULL
	OR r.status = 4 AND r.key_until IS NULL OR r.status IN (1, 2, 3) AND r.key_until IS NOT NULL OR r.key_until < r.updated - 1000000)`

	// knownSQL is false for a row that is past its time. A key is kept at least
	// until it was settled, which is when the row was last changed: a row with an
	// earlier key_until is damaged. The second is for clocks that are read twice.
	knownSQL = `(r.key_until IS NULL OR r.key_until > {now} OR r.key_until < r.updated - 1000000)`

	// freeSQL is false for a row with the parts of another key. Such a row is
	// damaged, which readers report.
	freeSQL = `(r.scope = @scope AND r.operation = @operation AND r.id = @id AND (NOT {known} OR r.outcome_until IS NULL AND r.owner <> @owner AND
	(r.status = 0 OR (r.status = 2 OR r.status = 1 AND r.lease_until <= {now}) AND r.attempt = @attempt)))`

	// columnsSQL leaves out an outcome that has expired.
	columnsSQL = `{digest}(r."key"), r.scope, r.operation, r.id, CASE WHEN {known} THEN 1 ELSE 0 END, {status}, r.attempt, {digest}(r.owner),
	{lease left}, {age}, {fingerprint}, {outcome},
	r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {digest}(r.cause),
	CASE WHEN r.key_until < r.outcome_until THEN {key left} ELSE {outcome left} END`

	getSQL = `{with} SELECT {columns} FROM {table} AS r{hint} WHERE r."key" = @key`

	insertSQL = `INSERT INTO {table} ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, created, updated)
VALUES (@key, @scope, @operation, @id, 1, 1, @owner, {now} + @lease, @fingerprint, @caused, {now}, {now})`

	// claimedSQL is in the order that MySQL needs, where later assignments see
	// the values of earlier ones.
	claimedSQL = `status = 1, attempt = CASE WHEN {known} THEN r.attempt + 1 ELSE 1 END,
	created = CASE WHEN {known} THEN r.created ELSE {now} END, owner = @owner, lease_until = {now} + @lease,
	fingerprint = @fingerprint, cause = @caused, outcome = NULL, content_type = '', flags = 0, sum = 0,
	outcome_until = NULL, key_until = NULL, due = {foreseen}, reason = NULL, updated = {now}`

	takeSQL = `UPDATE {target} SET {claimed}{from} WHERE r."key" = @key AND {free}`

	// claimPostgreSQL returns the row that has the key, in one round trip. It
	// writes only if that is the row of this claim. The gate is a lock that the
	// transaction holds to its end. If another transaction has it, the claim
	// does not wait, but returns a row with attempt 0. It returns no row if
	// another claim was committed after the snapshot of this statement.
	claimPostgreSQL = `{with}, seen AS (SELECT r.*, {free} AS free FROM {table} AS r WHERE r."key" = @key),
gate AS (SELECT pg_try_advisory_xact_lock(@lock) AS open WHERE NOT EXISTS (SELECT FROM seen WHERE NOT free)),
mine AS (INSERT INTO {table} AS r ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, due, created, updated)
	SELECT @key, @scope, @operation, @id, 1, 1, @owner, {now} + @lease, @fingerprint, @caused, {foreseen}, {now}, {now} FROM gate WHERE open
	ON CONFLICT ("key") DO UPDATE SET {claimed} WHERE {free} RETURNING r.*)
SELECT {columns} FROM mine AS r UNION ALL SELECT {columns} FROM seen AS r WHERE NOT r.free
UNION ALL SELECT text(@key), @scope, @operation, @id, 1, 1, 0, NULL, 0, 0, NULL, NULL, NULL, NULL, '', 0, 0, '', 0, 0, NULL, 0 FROM gate WHERE NOT open`

	// insertNewSQL claims a key that was never seen and that no other transaction
	// claims. With any other key it does nothing, and leaves the lock of one that
	// has a row to those who may take that over. The lease begins when the
	// statement runs, which may have waited for the table.
	insertNewSQL = `INSERT INTO {table} ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, due, created, updated)
SELECT @key, @scope, @operation, @id, 1, 1, @owner, {clock} + @lease, @fingerprint, @caused,
	({begun} + @keep + @grain - 1) / @grain * @grain, {begun}, {begun}
WHERE CASE WHEN EXISTS (SELECT FROM {table} WHERE "key" = @key) THEN false ELSE pg_try_advisory_xact_lock(@lock) END
ON CONFLICT ("key") DO NOTHING RETURNING created`

	// extendSQL reads PostgreSQL's clock after it has locked the row, so it
	// does not extend a lease that lapsed while it waited.
	extendSQL = `UPDATE {table} SET lease_until = {clock} + @lease, updated = {clock}
WHERE "key" = @key AND owner = @owner AND attempt = @attempt AND status = 1 AND lease_until > {clock}`

	settleSQL = `{with} UPDATE {target} SET status = @status, lease_until = CASE WHEN @status = 2 THEN {now} END,
	outcome = @body, content_type = @type, flags = @flags, sum = @sum, outcome_until = {now} + @keepOutcome,
	key_until = {now} + @keepKey, due = {due at}, reason = @reason, updated = {now}{from}
WHERE r."key" = @key AND r.owner = @owner AND r.attempt = @attempt AND r.status IN (1, 2, 3) AND NOT (r.status = 3 AND @status = 2)`

	// ownPostgreSQL is true if this transaction has written the row.
	ownPostgreSQL = ` AND r.xmin::text::bigint = mod(txid_current_if_assigned(), 4294967296)`

	// dueSQL selects due rows. In SQLite, nobody else writes meanwhile.
	dueSQL = `SELECT d."key" AS k FROM {table} AS d WHERE d.due <= {now} ORDER BY d.due LIMIT @limit{locked}`

	// In PostgreSQL, no plan reads the whole table for an array. A lease of 0
	// says that the outcome was dropped, since an empty outcome would not tell.
	forgetSQL = `{due} DELETE FROM {table} WHERE "key" {in} AND key_until <= {now} AND key_until >= updated - 1000000`
	expireSQL = `{due} UPDATE {table} SET outcome = NULL, lease_until = 0, due = key_until WHERE "key" {in} AND due <= {now}`

	// In PostgreSQL, an update that changes no indexed column is cheap. So a
	// claim sets due as expected, and a settlement leaves it alone. If the row
	// turns out to be due later, laterSQL puts it off.
	foreseenSQL = `({now} + @keep + @grain - 1) / @grain * @grain`
	dueAtSQL    = `CASE WHEN r.due <= {now} + @due + @grain THEN r.due ELSE {now} + @due END`
	laterSQL    = `{due} UPDATE {table} SET outcome = CASE WHEN outcome_until > {now} THEN outcome END,
	lease_until = CASE WHEN outcome_until <= {now} THEN 0 ELSE lease_until END,
	due = CASE WHEN outcome_until > {now} THEN outcome_until ELSE key_until END WHERE "key" {in} AND due <= {now}`

	// With IN, or without these hints, MySQL would scan the whole table and
	// wait for locked rows.
	forgetMySQL = `DELETE r FROM ({rows}) AS d STRAIGHT_JOIN {table} AS r FORCE INDEX (PRIMARY) ON r."key" = d.k WHERE r.key_until <= {now} AND r.key_until >= r.updated - 1000000`
	expireMySQL = `UPDATE ({rows}) AS d STRAIGHT_JOIN {table} AS r FORCE INDEX (PRIMARY) ON r."key" = d.k
SET r.outcome = NULL, r.lease_until = 0, r.due = r.key_until WHERE r.due <= {now}`
)
