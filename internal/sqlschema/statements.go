package sqlschema

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/effectively-once/once/internal/name"
)

// Statements are the SQL of a store behind database/sql. They are written once, in what the dialects have in common.
type Statements struct {
	Insert, Take                   Statement // Take what is free, where Insert found a row; see ClaimsAtOnce
	Get, GetLocked, Extend, Settle Statement
	GetNoWait                      Statement // of MySQL: an error if another transaction has locked the row
	SettleOwn                      Statement // Settle of a claim that this transaction has made, as far as the database can tell
	Forget, Expire                 Statement
	Due, Reopen                    Statement

	putOff  Statement
	text    *strings.Replacer
	dialect Dialect
}

// Statement is SQL as a driver takes it, and its parameters in their order.
type Statement struct {
	Text  string
	names []string
}

// Params are the values of parameters by their names. One that is missing is NULL.
type Params map[string]any

// Args are the values in the order of the statement.
func (st Statement) Args(p Params) []any {
	args := make([]any, len(st.names))
	for i, name := range st.names {
		args[i] = p[name]
	}
	return args
}

// UUID is an id as drivers take it.
func (n Names) UUID(id [16]byte) any {
	if n.dialect == PostgreSQL {
		return name.Format(id)
	}
	return id[:]
}

// Statements are made once for a store: making them costs more than running one.
func (n Names) Statements() *Statements {
	st := &Statements{text: strings.NewReplacer(n.texts()...), dialect: n.dialect}
	st.Insert, st.Take = st.compile(insertSQL), st.compile(takeSQL)
	st.Get, st.Extend, st.Settle = st.compile(getSQL), st.compile(extendSQL), st.compile(settleSQL)
	st.GetNoWait = st.Get
	st.GetLocked, st.Forget, st.Expire = st.Get, st.compile(forgetSQL), st.compile(expireSQL)
	st.Due, st.Reopen, st.SettleOwn = st.compile(dueRecordsSQL), st.compile(reopenSQL), st.Settle
	switch n.dialect {
	case PostgreSQL:
		st.Insert, st.Expire = st.compile(claimPostgreSQL), st.compile(laterSQL)
		st.Due, st.putOff = st.compile(dueRecordsPostgreSQL), st.compile(putOffSQL)
		st.SettleOwn = st.compile(settleSQL + ownPostgreSQL)
	case SQLite:
		st.Insert = st.compile(insertSQL + " ON CONFLICT DO NOTHING")
	case MySQL:
		st.GetLocked = st.compile(getSQL + " LOCK IN SHARE MODE") // REPEATABLE READ shows an old snapshot otherwise
		st.GetNoWait = st.compile(getSQL + " FOR UPDATE NOWAIT")
		st.Forget, st.Expire = st.compile(forgetMySQL), st.compile(expireMySQL)
	case SQLServer:
		n.inTransactSQL(st)
	}
	return st
}

// Compile fills the names of tables, and what the dialects spell differently, into a statement that is written once for
// all of them. Marks are what more names in braces stand for.
func (n Names) Compile(text string, marks ...string) Statement { return n.Compiler(marks...)(text) }

// Compiler is [Names.Compile] for many statements, or those that are made again and again.
func (n Names) Compiler(marks ...string) func(text string) Statement {
	marks = append(append(append(marks, n.consumerNames()...), n.outboxNames()...), n.texts()...)
	st := &Statements{text: strings.NewReplacer(marks...), dialect: n.dialect}
	return st.compile
}

// Dialect is the SQL that the names are for.
func (n Names) Dialect() Dialect { return n.dialect }

// ClaimsAtOnce reports whether Insert takes over what is free, too, and returns the row that is the caller's now, or
// what stands in its way: none if it has lost a race, one with an attempt 0 if it has met a transaction in flight.
func (d Dialect) ClaimsAtOnce() bool { return d == PostgreSQL || d == SQLServer }

// texts are what names in braces stand for.
func (n Names) texts() []string {
	texts := []string{"{table}", n.Table(), "{due index}", n.quote(n.prefix + "record_due"),
		"{operation index}", n.quote(n.prefix + "record_operation"), "{cause index}", n.quote(n.prefix + "record_cause"), "{status}", statusSQL, "{known}", knownSQL, "{free}", freeSQL,
		"{claimed}", claimedSQL, "{columns}", columnsSQL, "{rows}", dueSQL, "{clock}", n.Now()}
	if n.dialect != PostgreSQL {
		texts = append(texts, "{foreseen}", "NULL", "{due at}", "{now} + @due", "{open}", "r.due IS NULL")
	}
	if n.dialect == SQLServer {
		return append(texts, n.transactSQL()...)
	}
	if n.dialect != MySQL {
		texts = append(texts, "{by key}", "")
	}
	texts = append(texts, "{target}", "{table} AS r", "{from}", "", "{hint}", "", "{null}", "NULL", "{asked}", "r.operation = @operation", "{top}", "", "{limit}", " LIMIT @limit",
		"{last}", " LIMIT 1 OFFSET "+passedOver, "{past locks}", "")
	switch n.dialect {
	case PostgreSQL: // whose clock moves on within a statement, unless it is read once
		clock := "WITH clock AS (SELECT " + n.Now() + " AS now)"
		texts = append(texts, "{foreseen}", foreseenSQL, "{due at}", dueAtSQL, "{open}", "r."+openSQL, "{with}", clock, "{now}", "(SELECT now FROM clock)", "{bytes}", "uuid_send",
			"{due}", clock+", due AS ({rows})",
			"{in}", "= ANY (ARRAY(SELECT k FROM due))", "{locked}", " FOR UPDATE SKIP LOCKED")
	case MySQL:
		texts = append(texts, "{with}", "", "{now}", n.Now(), "{bytes}", "", "{locked}", " FOR UPDATE SKIP LOCKED", `"key"`, "`key`",
			"{by key}", " FORCE INDEX (PRIMARY)")
	case SQLite:
		texts = append(texts, "{with}", "", "{now}", n.Now(), "{bytes}", "", "{due}", "WITH due AS ({rows})",
			"{in}", "IN (SELECT k FROM due)", "{locked}", "")
	}
	return texts
}

const deepest = 4 // how far names in braces stand for texts that have others

var parameter = regexp.MustCompile(`@?@\w+`)

// types of parameters are written out where it makes a difference whether the server or the driver decides on them.
// All others are bigint.
var types = map[Dialect]map[string]string{PostgreSQL: typesPostgreSQL, SQLServer: typesSQLServer}

var typesPostgreSQL = map[string]string{"key": "uuid", "owner": "uuid", "caused": "uuid", "uuid": "uuid", "after": "uuid", "until": "uuid", "scope": "text", "operation": "text",
	"id": "text", "type": "text", "reason": "text", "fingerprint": "bytea", "body": "bytea", "status": "smallint", "flags": "smallint",
	"row": "uuid", "who": "uuid", "lane": "uuid", "digest": "uuid", "state": "smallint", "name": "text", "source": "text", "keys": "text",
	"partition": "text", "log": "text", "from": "text", "message": "text", "topic": "text", "ordering": "text", "produced": "text", "cause": "text",
	"origin": "text", "history": "text", "header": "text", "of": "smallint", "seqs": "text", "lanes": "text", "places": "text",
	"states": "smallint[]", "delays": "bigint[]", "ids": "text[]", "topics": "text[]", "orderings": "text[]", "causes": "text[]", "times": "text[]",
	"headers": "text[]", "bodies": "bytea[]", "tracks": "smallint[]"}

// compile fills in what is in braces, and puts the dialect's placeholders in place of @names.
func (st *Statements) compile(text string) (out Statement) {
	for range deepest {
		filled := st.text.Replace(text)
		if filled == text {
			break
		}
		text = filled
	}
	numbered := map[string]string{}
	out.Text = parameter.ReplaceAllStringFunc(text, func(at string) string {
		if strings.HasPrefix(at, "@@") { // a function of SQL Server
			return at
		}
		name := at[1:]
		if known := numbered[name]; known != "" {
			return known
		}
		out.names = append(out.names, name)
		if types[st.dialect] == nil {
			return "?"
		}
		kind := types[st.dialect][strings.TrimRight(name, "0123456789")]
		numbered[name] = st.typed(len(out.names), cmp.Or(kind, "bigint"))
		return numbered[name]
	})
	return out
}

func (st *Statements) typed(number int, kind string) string {
	if st.dialect == SQLServer {
		return fmt.Sprintf("CAST(@p%d AS %s)", number, kind)
	}
	return fmt.Sprintf("$%d::%s", number, kind)
}

const (
	// statusSQL makes a status that is never written one that does not exist: a 5 would read as expired. Only what is done
	// has an end of its outcome: so one damaged bit does not let finished work run again.
	statusSQL = `CASE WHEN r.status <> 4 AND r.outcome_until IS NOT NULL OR r.status = 4 AND r.outcome_until IS NULL THEN -1
	WHEN r.status = 1 AND r.lease_until <= {now} THEN 2 WHEN r.status = 4 AND r.outcome_until <= {now} THEN 5
	WHEN r.status BETWEEN 0 AND 4 THEN r.status ELSE -1 END`

	knownSQL = `COALESCE(r.key_until, {now} + 1) > {now}`

	// freeSQL leaves a row alone that has the key of others: it is damaged, which is noticed at reading.
	freeSQL = `(r.scope = @scope AND r.operation = @operation AND r.id = @id AND (NOT {known} OR r.outcome_until IS NULL AND r.owner <> @owner AND
	(r.status = 0 OR (r.status = 2 OR r.status = 1 AND r.lease_until <= {now}) AND r.attempt = @attempt)))`

	// columnsSQL does not send an outcome that has expired.
	columnsSQL = `{bytes}(r."key"), r.scope, r.operation, r.id, CASE WHEN {known} THEN 1 ELSE 0 END, {status}, r.attempt, {bytes}(r.owner),
	COALESCE(r.lease_until - {now}, 0), {now} - r.created, r.fingerprint, CASE WHEN r.outcome_until > {now} THEN r.outcome END,
	r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {bytes}(r.cause)`

	getSQL = `{with} SELECT {columns} FROM {table} AS r{hint} WHERE r."key" = @key`

	insertSQL = `INSERT INTO {table} ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, created, updated)
VALUES (@key, @scope, @operation, @id, 1, 1, @owner, {now} + @lease, @fingerprint, @caused, {now}, {now})`

	// claimedSQL is in an order that MySQL needs, where an assignment shows in those behind it.
	claimedSQL = `status = 1, attempt = CASE WHEN {known} THEN r.attempt + 1 ELSE 1 END,
	created = CASE WHEN {known} THEN r.created ELSE {now} END, owner = @owner, lease_until = {now} + @lease,
	fingerprint = @fingerprint, cause = @caused, outcome = NULL, content_type = '', flags = 0, sum = 0,
	outcome_until = NULL, key_until = NULL, due = {foreseen}, reason = NULL, updated = {now}`

	takeSQL = `UPDATE {target} SET {claimed}{from} WHERE r."key" = @key AND {free}`

	// claimPostgreSQL returns the row that is the caller's now, or what stands in its way: in one round trip,
	// and in the latter case without a write. The gate is a lock that its transaction holds to the end; whoever
	// finds it shut has met a transaction in flight, which is answered with an attempt 0 instead of waiting.
	// No row at all: another claim was committed after the snapshot of this statement was taken.
	claimPostgreSQL = `{with}, seen AS (SELECT r.*, {free} AS free FROM {table} AS r WHERE r."key" = @key),
gate AS (SELECT pg_try_advisory_xact_lock(@lock) AS open WHERE NOT EXISTS (SELECT FROM seen WHERE NOT free)),
mine AS (INSERT INTO {table} AS r ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, due, created, updated)
	SELECT @key, @scope, @operation, @id, 1, 1, @owner, {now} + @lease, @fingerprint, @caused, {foreseen}, {now}, {now} FROM gate WHERE open
	ON CONFLICT ("key") DO UPDATE SET {claimed} WHERE {free} RETURNING r.*)
SELECT {columns} FROM mine AS r UNION ALL SELECT {columns} FROM seen AS r WHERE NOT r.free
UNION ALL SELECT uuid_send(@key), @scope, @operation, @id, 1, 1, 0, NULL, 0, 0, NULL, NULL, '', 0, 0, '', 0, 0, NULL FROM gate WHERE NOT open`

	// extendSQL reads PostgreSQL's clock when it has the row: a lease that lapses while it waits stays lapsed.
	extendSQL = `UPDATE {table} SET lease_until = {clock} + @lease, updated = {clock}
WHERE "key" = @key AND owner = @owner AND attempt = @attempt AND status = 1 AND lease_until > {clock}`

	settleSQL = `{with} UPDATE {target} SET status = @status, lease_until = CASE WHEN @status = 2 THEN {now} END,
	outcome = @body, content_type = @type, flags = @flags, sum = @sum, outcome_until = {now} + @keepOutcome,
	key_until = {now} + @keepKey, due = {due at}, reason = @reason, updated = {now}{from}
WHERE r."key" = @key AND r.owner = @owner AND r.attempt = @attempt AND r.status IN (1, 2, 3) AND NOT (r.status = 3 AND @status = 2)`

	// ownPostgreSQL is true of a row that this transaction has written.
	ownPostgreSQL = ` AND r.xmin::text::bigint = mod(txid_current_if_assigned(), 4294967296)`

	// dueSQL are the rows that it is time for. In SQLite, nobody else writes meanwhile.
	dueSQL = `SELECT d."key" AS k FROM {table} AS d WHERE d.due <= {now} ORDER BY d.due LIMIT @limit{locked}`

	// In PostgreSQL, no plan reads the whole table for an array. What is done has no lease: a 0 in its place says that the
	// outcome was dropped, which an empty one does not.
	forgetSQL = `{due} DELETE FROM {table} WHERE "key" {in} AND key_until <= {now}`
	expireSQL = `{due} UPDATE {table} SET outcome = NULL, lease_until = 0, due = key_until WHERE "key" {in} AND due <= {now}`

	// In PostgreSQL, an update that changes no column of an index is done in place. So a claim foresees when its row is due,
	// a settlement leaves that alone, and a row that turns out to be due later gets the right time when it is looked at.
	foreseenSQL = `({now} + @keep + @grain - 1) / @grain * @grain`
	dueAtSQL    = `CASE WHEN r.due <= {now} + @due + @grain THEN r.due ELSE {now} + @due END`
	laterSQL    = `{due} UPDATE {table} SET outcome = CASE WHEN outcome_until > {now} THEN outcome END,
	lease_until = CASE WHEN outcome_until <= {now} THEN 0 ELSE lease_until END,
	due = CASE WHEN outcome_until > {now} THEN outcome_until ELSE key_until END WHERE "key" {in} AND due <= {now}`

	// MySQL would go through the whole table for an IN, or without these hints, and wait at rows that are locked.
	forgetMySQL = `DELETE r FROM ({rows}) AS d STRAIGHT_JOIN {table} AS r FORCE INDEX (PRIMARY) ON r."key" = d.k WHERE r.key_until <= {now}`
	expireMySQL = `UPDATE ({rows}) AS d STRAIGHT_JOIN {table} AS r FORCE INDEX (PRIMARY) ON r."key" = d.k
SET r.outcome = NULL, r.lease_until = 0, r.due = r.key_until WHERE r.due <= {now}`
)
