package sqlschema

import (
	"fmt"
	"strings"
)

// ForgetOnly returns the statements that forget n rows, as Forget and Expire do: @key0, @owner0 and @attempt0 are what was
// read of the first, and so on; @limit is n.
func (st *Statements) ForgetOnly(n int) (forget, expire Statement) {
	keys, same := make([]string, n), make([]string, n)
	for i := range n {
		keys[i] = fmt.Sprint("@key", i)
		same[i] = fmt.Sprintf(`(d."key" = @key%[1]d AND d.attempt = @attempt%[1]d AND (d.owner = @owner%[1]d OR d.status = 0))`, i)
	}
	// Nothing but the key is to be looked up in an index, so due is not alone on its side.
	those := `d."key" IN (` + strings.Join(keys, ", ") + ") AND d.due + 0 <= {now} AND (" + strings.Join(same, " OR ") + ")"
	only := strings.NewReplacer("{due}", st.text.Replace("{due}"))
	again := strings.NewReplacer("{rows}", fmt.Sprintf(onlySQL, those), "{picked}", fmt.Sprintf(onlySQLServer, those))
	fill := func(text string) Statement { return st.compile(again.Replace(only.Replace(text))) }
	switch st.dialect {
	case PostgreSQL:
		return fill(forgetSQL), fill(laterSQL)
	case MySQL:
		return fill(forgetMySQL), fill(expireMySQL)
	case SQLServer:
		return fill(countedSQL + forgetSQLServer), fill(countedSQL + expireSQLServer)
	}
	return fill(forgetSQL), fill(expireSQL)
}

// PutOff gives rows that are due before it is time to forget anything of them the time at which it is, up to @limit. There
// are none where no claim foresees that time.
func (st *Statements) PutOff() (put Statement, some bool) { return st.putOff, st.putOff.Text != "" }

const (
	// onlySQL has a limit for MySQL, which does not change the table that it reads from unless that is read beforehand.
	onlySQL       = `SELECT d."key" AS k FROM {table} AS d{by key} WHERE %s LIMIT @limit{locked}`
	onlySQLServer = `SELECT d.outcome, d.lease_until, d.due, d.key_until FROM {table} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK) WHERE %s`

	// leftSQL is the status of a row that is due, by what is still there of it. That its outcome was dropped shows in its
	// lease, and where an earlier build did it, in when it is due.
	leftSQL = `CASE WHEN r.outcome IS NULL AND r.outcome_until IS NULL THEN 0
	WHEN r.outcome IS NULL AND (r.lease_until = 0 OR r.due = r.key_until AND r.outcome_until < r.key_until - 1000000) THEN 5 ELSE 4 END`

	// dueRecordsSQL are records as readers of columnsSQL take them, of the rows that it is time for.
	dueRecordsSQL = `{with} SELECT {top}{bytes}(r."key"), r.scope, r.operation, r.id, 1, ` + leftSQL + `, r.attempt, {bytes}(r.owner),
	0, {now} - r.created, r.fingerprint, r.outcome, r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {bytes}(r.cause)
FROM {table} AS r{past locks} WHERE r.due <= {now} ORDER BY r.due{limit}`

	// A claim in PostgreSQL foresees when its row is due. What turns out to be due later is put off first, so that it is not
	// in the way.
	dueRecordsPostgreSQL = `{with} SELECT {bytes}(r."key"), r.scope, r.operation, r.id, 1, ` + leftSQL + `, r.attempt, {bytes}(r.owner),
	0, {now} - r.created, r.fingerprint, r.outcome, r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {bytes}(r.cause)
FROM (SELECT * FROM {table} WHERE due <= {now} ORDER BY due LIMIT @limit) AS r WHERE ` + pastSQL + ` ORDER BY r.due`
	putOffSQL = `{due} UPDATE {table} AS r SET due = CASE WHEN r.outcome_until > {now} THEN r.outcome_until ELSE r.key_until END
WHERE r."key" {in} AND r.due <= {now} AND (` + pastSQL + `) IS NOT TRUE`
	pastSQL = `r.key_until <= {now} OR r.outcome_until <= {now}`

	// reopenSQL keeps the owner, as a settlement does that frees a key: that is how what it still sends is known to be late.
	reopenSQL = `{with} UPDATE {target} SET status = 0, lease_until = NULL, outcome = NULL, content_type = '', flags = 0, sum = 0, outcome_until = NULL,
	key_until = {now} + @keepKey, due = {now} + @keepKey, reason = @reason, updated = {now}{from}
WHERE r."key" = @key AND r.owner = @owner AND r.attempt = @attempt AND r.status = 4 AND {known}`
)
