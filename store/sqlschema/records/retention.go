package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// ForgetOnly returns the statements that forget n rows, as Forget and Expire
// do. @key0, @owner0 and @attempt0 are those of the first row as it was read,
// and so on. @limit is n.
func (st *Statements) ForgetOnly(n int) (forget, expire sqlschema.Statement) {
	keys, same := make([]string, n), make([]string, n)
	for i := range n {
		keys[i] = fmt.Sprint("@key", i)
		same[i] = fmt.Sprintf(`(d."key" = @key%[1]d AND d.attempt = @attempt%[1]d AND (d.owner = @owner%[1]d OR d.status = 0))`, i)
	}
	// An expression on due keeps the planner from its index, so that it uses
	// the key.
	those := `d."key" IN (` + strings.Join(keys, ", ") + ") AND d.due + 0 <= {now} AND (" + strings.Join(same, " OR ") + ")"
	only := strings.NewReplacer("{due}", st.mark("{due}"))
	again := strings.NewReplacer("{rows}", fmt.Sprintf(onlySQL, those), "{picked}", fmt.Sprintf(onlySQLServer, those))
	fill := func(text string) sqlschema.Statement { return st.compile(again.Replace(only.Replace(text))) }
	switch st.dialect {
	case sqlschema.PostgreSQL:
		return fill(forgetSQL), fill(laterSQL)
	case sqlschema.MySQL:
		return fill(forgetMySQL), fill(expireMySQL)
	case sqlschema.SQLServer:
		return fill(countedSQL + forgetSQLServer), fill(countedSQL + expireSQLServer)
	}
	return fill(forgetSQL), fill(expireSQL)
}

// mark returns the text that a mark stands for.
func (st *Statements) mark(name string) string {
	i := slices.Index(st.marks, name)
	if i < 0 {
		return ""
	}
	return st.marks[i+1]
}

// Forgettable implements Forgettable of [store.Archivable].
func (st *Statements) Forgettable(ctx context.Context, db sqlschema.Querier,
	limit int) (due []once.Record, more bool, err error) {

	if limit <= 0 {
		return nil, false, sqlschema.Refusal(fmt.Sprintf("Forgettable with a limit of %d: give at least 1", limit))
	}
	p := sqlschema.Params{"limit": int64(limit)}
	later := int64(0)
	if st.PutOff.Text != "" {
		if later, err = db.Exec(ctx, st.PutOff.Text, st.PutOff.Args(p)...); err != nil {
			return nil, false, err
		}
	}
	for rows := limit; ; rows *= 2 { // nobody forgets damaged rows, so they may come to fill a page
		p["limit"] = int64(rows)
		due, damage, full, err := st.readDue(ctx, db, p)
		if err != nil {
			return nil, false, err
		}
		full = full || len(due)+len(damage) == rows
		if !full || len(due) > 0 {
			return due, full || int(later) > 0 && len(due)+int(later) >= limit, errors.Join(damage...)
		}
	}
}

// errFull ends a page early.
var errFull = errors.New("the page is full")

// readDue ends a page early if its outcomes are large. The rest of the result
// may be a hundred times as much, so where the server would send it, readDue
// cancels the query, which closes the connection.
func (st *Statements) readDue(ctx context.Context, db sqlschema.Querier,
	p sqlschema.Params) (due []once.Record, damage []error, full bool, err error) {

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size := 0
	err = sqlschema.Each(ctx, db, st.Due.Text, st.Due.Args(p), func(rows sqlschema.Rows) error {
		r, err := ReadRow(rows)
		if errors.Is(err, once.ErrCorrupt) {
			damage = append(damage, err)
			return nil
		}
		if err != nil {
			return err
		}
		due = append(due, r.Seen())
		if size += len(r.Outcome.Body); size < store.MaxForgettable {
			return nil
		}
		if st.dialect != sqlschema.SQLite { // which computes one row at a time
			cancel()
		}
		return errFull
	})
	if errors.Is(err, errFull) {
		return due, damage, true, nil
	}
	return due, damage, false, err
}

const (
	// onlySQL has a limit because of MySQL, which then reads the rows before it
	// changes the same table.
	onlySQL       = `SELECT d."key" AS k FROM {table} AS d{by key} WHERE %s LIMIT @limit{locked}`
	onlySQLServer = `SELECT d.outcome, d.lease_until, d.due, d.key_until, d.updated FROM {table} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK) WHERE %s`

	// dueRecordsSQL returns due rows with the columns of columnsSQL.
	dueRecordsSQL = `{with} SELECT {top}{digest}(r."key"), r.scope, r.operation, r.id, 1, ` + leftSQL + `, r.attempt, {digest}(r.owner),
	0, {age}, {fingerprint}, {outcome at all}, r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {digest}(r.cause), 0
FROM {table} AS r{past locks} WHERE r.due <= {now} ORDER BY r.due{limit}`

	// In PostgreSQL, a claim sets due as expected. putOffSQL first corrects it
	// in rows that turn out to be due later, so that they do not fill the page.
	dueRecordsPostgreSQL = `{with} SELECT {digest}(r."key"), r.scope, r.operation, r.id, 1, ` + leftSQL + `, r.attempt, {digest}(r.owner),
	0, {age}, {fingerprint}, {outcome at all}, r.content_type, r.flags, r.sum, COALESCE(r.reason, ''), r.created, r.updated, {digest}(r.cause), 0
FROM (SELECT * FROM {table} WHERE due <= {now} ORDER BY due LIMIT @limit) AS r WHERE ` + pastSQL + ` ORDER BY r.due`
	putOffSQL = `{due} UPDATE {table} AS r SET due = CASE WHEN r.outcome_until > {now} THEN r.outcome_until ELSE r.key_until END
WHERE r."key" {in} AND r.due <= {now} AND (` + pastSQL + `) IS NOT TRUE`
	pastSQL = `r.key_until <= {now} OR r.outcome_until <= {now}`

	// reopenSQL keeps the owner, as a settlement that releases a key does: so
	// late calls of that owner are recognized.
	reopenSQL = `{with} UPDATE {target} SET status = 0, lease_until = NULL, outcome = NULL, content_type = '', flags = 0, sum = 0, outcome_until = NULL,
	key_until = {now} + @keepKey, due = {now} + @keepKey, reason = @reason, updated = {now}{from}
WHERE r."key" = @key AND r.owner = @owner AND r.attempt = @attempt AND r.status = 4 AND {known}`
)

// leftSQL is the status of a due row, by what is left of it: absent, done or
// expired. If the outcome was dropped, lease_until is 0, or, where an earlier
// build dropped it, due is key_until.
const leftSQL = `CASE WHEN {damaged} THEN -1 WHEN r.outcome IS NULL AND r.outcome_until IS NULL THEN 0
	WHEN r.outcome IS NULL AND (r.lease_until = 0 OR r.due = r.key_until AND r.outcome_until < r.key_until - 1000000) THEN 5 ELSE 4 END`
