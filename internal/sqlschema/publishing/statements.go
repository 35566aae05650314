package publishing

import (
	"strconv"
	"strings"
	"sync"

	"github.com/effectively-once/once/internal/sqlschema"
)

// statements are the SQL of [Tables]. Those in pairs are for people and for relays, which need a lease.
type statements struct {
	remove, keep, move pair
	removeAt           pair    // by the places of rows, in PostgreSQL
	archive            [3]pair // the other two are empty where one statement does it all
	wake, next         pair
	forget             sqlschema.Statement
	forgetArchived     sqlschema.Statement
	gate, take, alive  sqlschema.Statement
	dead, leases       sqlschema.Statement
	release, dismiss   sqlschema.Statement
	counts, samples    sqlschema.Statement
	putArrays          sqlschema.Statement
	plans, settings    string
	made               *sync.Map // those that are made when they are needed first: by a form, or a putShape
	compile            func(text string) sqlschema.Statement
	dialect            sqlschema.Dialect
}

// pair is a statement for anybody, and for a relay that must have the lease of the lane.
type pair struct{ anybody, leased sqlschema.Statement }

func (p pair) of(relay [16]byte) sqlschema.Statement {
	if relay == ([16]byte{}) {
		return p.anybody
	}
	return p.leased
}

func newStatements(n sqlschema.Names) *statements {
	d := n.Dialect()
	spelled := marks(d)
	st := &statements{dialect: d, made: new(sync.Map)}
	st.compile = n.Compiler(spelled...)
	st.remove, st.keep, st.move = st.pair(removeSQL), st.pair(keepSQL), st.pair(moveSQL)
	for i, text := range archiveSQL(d) {
		st.archive[i] = st.pair(text)
	}
	st.wake, st.next = st.pair(wakeSQL[d]), st.pair(nextSQL)
	st.forget = st.compile(forgetSQL[d])
	st.forgetArchived = st.compile(forgetArchivedSQL[d])
	st.gate, st.take, st.alive = st.compile(gateSQL), st.compile(takeSQL), st.compile(aliveSQL[d])
	st.dead, st.leases = st.compile(deadSQL), st.compile(leasesSQL)
	st.release, st.dismiss = st.compile(releaseSQL), st.compile(dismissSQL)
	st.counts, st.samples = st.compile(countsSQL()), st.compile(samplesSQL())
	if d == sqlschema.PostgreSQL {
		st.removeAt = st.pair(removeAtSQL)
		st.putArrays, st.plans, st.settings = st.compile(putArraysSQL), plansSQL, settingsSQL
	}
	return st
}

// once makes a statement that is needed again and again.
func (st *statements) once(shape any, text func() string) sqlschema.Statement {
	known, ok := st.made.Load(shape)
	if !ok {
		known, _ = st.made.LoadOrStore(shape, st.compile(text()))
	}
	return known.(sqlschema.Statement)
}

// pair fills in who may do it.
func (st *statements) pair(text string) pair {
	leased := leasedSQL
	change, remove := "UPDATE {outbox}", "DELETE FROM {outbox}"
	switch st.dialect {
	case sqlschema.PostgreSQL: // which looks for the lanes once, and not for each row
		leased = leasedPostgreSQL
	case sqlschema.MySQL:
		leased = leasedMySQL
		// By the key, however few rows there are: reading all of them, it would wait for those of others.
		change, remove = "UPDATE {outbox} AS o FORCE INDEX (PRIMARY)", "DELETE o FROM {outbox} AS o FORCE INDEX (PRIMARY)"
	}
	of := func(leased string) sqlschema.Statement {
		text := strings.NewReplacer("{picked}", picked[st.dialect], "{update}", change, "{delete}", remove).Replace(text)
		return st.compile(strings.ReplaceAll(text, "{leased}", leased))
	}
	return pair{anybody: of(""), leased: of(leased)}
}

// marks are what the dialects spell differently, where it is not what package sqlschema knows.
func marks(d sqlschema.Dialect) []string {
	length, join, counted, group := "LENGTH(o.body)", "JOIN", "", ""
	switch d {
	case sqlschema.MySQL:
		join = "STRAIGHT_JOIN"
	case sqlschema.SQLite: // where the length of a text is in characters
		length, join = "LENGTH(CAST(o.body AS blob))", "CROSS JOIN"
	case sqlschema.SQLServer: // where = passes over spaces at the end of a text
		length, counted, group = "DATALENGTH(o.body)", "SET NOCOUNT OFF;\n", ", DATALENGTH(b.ordering_key)"
	}
	one, top := " LIMIT 1", ""
	if d == sqlschema.SQLServer {
		one, top = "", "TOP (1) "
	}
	return []string{"{just one}", one, "{only one}", top, "{length}", "COALESCE(" + length + ", 0)", "{join}", join,
		"{counted}", counted, "{group}", group}
}

// Without jit being off, a table that has to be read as a whole all the same, like that of lanes, would look so dear
// that each statement is compiled first.
const (
	plansSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true), set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('idle_in_transaction_session_timeout', '10000', true)`
	settingsSQL = plansSQL + `, set_config('synchronous_commit', 'off', true)`
)

const (
	leasedSQL = ` AND lane IN (SELECT l.lane FROM {lane} AS l WHERE l.relay = @who)`

	// leasedMySQL is nothing that MariaDB could join by, the other way round.
	leasedMySQL = ` AND (SELECT COUNT(*) FROM {lane} AS l WHERE l.lane = o.lane AND l.relay = @who) > 0`

	// leasedPostgreSQL is no condition that an index is chosen by: that would be for all rows of a lane.
	leasedPostgreSQL = ` AND (lane = ANY (ARRAY(SELECT l.lane FROM {lane} AS l WHERE l.relay = @who))) IS TRUE`
)

// keysMark is where the keys of rows are put into a statement, as numbers.
const keysMark = "{keys}"

// picked are the rows that a statement is about. In PostgreSQL, no plan for this reads more than these rows.
var picked = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `ctid = ANY (ARRAY(SELECT k.place
	FROM unnest(CAST(@lanes AS smallint[]), CAST(@seqs AS bigint[])) AS u (lane, seq)
	CROSS JOIN LATERAL (SELECT o.ctid AS place FROM {outbox} AS o
		WHERE o.lane = u.lane AND o.state = @state AND o.seq = u.seq LIMIT 1) AS k WHERE true{leased}))`,
	sqlschema.MySQL:     keysMark + `{leased}`,
	sqlschema.SQLite:    keysMark + `{leased}`,
	sqlschema.SQLServer: keysMark + `{leased}`,
}

const (
	removeSQL = `{counted}{delete} WHERE {picked}`

	// removeAtSQL looks at nothing but the places, whatever a plan that was made for an empty table takes for cheap: LIMIT
	// keeps the list in front. Another row may be there by now: its seq is another one. The state is looked at once more
	// because the row may change while it is waited for, and in a way that no index is chosen by.
	removeAtSQL = `DELETE FROM {outbox} AS d WHERE d.ctid = ANY (ARRAY(SELECT k.place
	FROM unnest(CAST(@places AS tid[]), CAST(@lanes AS smallint[]), CAST(@seqs AS bigint[])) AS u (place, lane, seq)
	CROSS JOIN LATERAL (SELECT o.ctid AS place FROM {outbox} AS o
		WHERE o.ctid = u.place AND o.lane = u.lane AND o.state = @state AND o.seq = u.seq LIMIT 1) AS k WHERE true{leased}))
	AND (d.state = @state) IS TRUE`

	keepSQL = `{counted}{with} {update} SET state = 4, changed = {now}, due = {now} WHERE {picked}`
	moveSQL = `{counted}{with} {update} SET state = @to, attempts = @attempts, reason = @reason,
	changed = {now}, due = {now} + @delay WHERE {picked}`

	archived = `seq, created, due, changed, attempts, lane, state, id, topic, ordering_key, produced, reason, cause,
	header, body`
	asItIs = `attempts, lane, 4, id, topic, ordering_key, produced, reason, cause, header, body`
)

// archiveSQL takes rows from one table to the other. Where that needs several statements, the first one gives them a
// state that nobody else sees, so that the others are about the same rows.
func archiveSQL(d sqlschema.Dialect) []string {
	switch d {
	case sqlschema.PostgreSQL:
		return []string{`{with}, gone AS (DELETE FROM {outbox} WHERE {picked} RETURNING *)
INSERT INTO {archive} (` + archived + `) SELECT seq, created, NULL, {now}, ` + asItIs + ` FROM gone`}
	case sqlschema.SQLServer:
		deleted := "deleted." + strings.ReplaceAll(asItIs, ", ", ", deleted.")
		deleted = strings.Replace(deleted, "deleted.4", "4", 1)
		return []string{`{counted}DELETE FROM {outbox} OUTPUT deleted.seq, deleted.created, NULL, {now}, ` + deleted +
			` INTO {archive} (` + archived + `) WHERE {picked}`}
	}
	return []string{`{update} SET state = ` + leaving + ` WHERE {picked}`,
		`INSERT INTO {archive} (` + archived + `) SELECT seq, created, NULL, {now}, ` + asItIs +
			` FROM {outbox} WHERE ` + keysMark,
		`{delete} WHERE ` + keysMark}
}

// leaving is the state of rows on their way to the archive.
const leaving = "5"

// keys are rows by numbers: these are not arguments, because there is a limit to those.
func keys(state string, seqs map[int][]int64) string {
	var b []byte
	for lane := range lanes {
		if len(seqs[lane]) == 0 {
			continue
		}
		if b != nil {
			b = append(b, " OR "...)
		}
		b = append(b, "lane = "...)
		b = strconv.AppendInt(b, int64(lane), 10)
		b = append(b, " AND state = "...)
		b = append(b, state...)
		b = append(b, " AND seq IN ("...)
		for i, seq := range seqs[lane] {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, seq, 10)
		}
		b = append(b, ')')
	}
	return "(" + string(b) + ")"
}
