package publishing

import (
	"strconv"
	"strings"
	"sync"

	"github.com/effectively-once/once/store/sqlschema"
)

// statements has the SQL of [Tables]. A pair has a statement for people and one
// for relays, which need a lease.
type statements struct {
	remove, keep, move pair
	removeAt           pair    // by the places of rows; PostgreSQL only
	archive            [3]pair // in dialects that need one statement, the other two are empty
	wake, next         pair
	forget             sqlschema.Statement
	forgetArchived     sqlschema.Statement
	decided            sqlschema.Statement
	decidedStuck       sqlschema.Statement
	gate, take, alive  sqlschema.Statement
	dead, leases       sqlschema.Statement
	release, dismiss   sqlschema.Statement
	counts, samples    sqlschema.Statement
	strays, walk       sqlschema.Statement
	putArrays          sqlschema.Statement
	plans, settings    string
	made               *sync.Map // statements that are compiled at their first use, by their form or putShape
	compile            func(text string) sqlschema.Statement
	dialect            sqlschema.Dialect
}

// pair is a statement for people, and the same for a relay that must have the
// lease of the lane.
type pair struct{ anybody, leased sqlschema.Statement }

func (p pair) of(relay [16]byte) sqlschema.Statement {
	if relay == ([16]byte{}) || relay == LogReader {
		return p.anybody
	}
	return p.leased
}

// LogReader is the relay of whoever reads messages from the database's log. It
// needs no lease, and is not a person.
var LogReader = [16]byte{15: 1}

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
	st.decided = st.compile(strings.Replace(decidedSQL, "{states}", "2, 3", 1))
	st.decidedStuck = st.compile(strings.Replace(decidedSQL, "{states}", "3", 1))
	st.gate, st.take, st.alive = st.compile(gateSQL), st.compile(takeSQL), st.compile(aliveSQL[d])
	st.dead, st.leases = st.compile(deadSQL), st.compile(leasesSQL)
	st.release, st.dismiss = st.compile(releaseSQL), st.compile(dismissSQL)
	st.strays, st.walk = st.compile(straysSQL), st.compile(walkSQL)
	st.counts, st.samples = st.compile(countsSQL()), st.compile(samplesSQL())
	if d == sqlschema.PostgreSQL {
		st.removeAt = st.pair(removeAtSQL)
		st.putArrays, st.plans, st.settings = st.compile(putArraysSQL), plansSQL, settingsSQL
	}
	return st
}

// once compiles a statement at its first use.
func (st *statements) once(shape any, text func() string) sqlschema.Statement {
	known, ok := st.made.Load(shape)
	if !ok {
		known, _ = st.made.LoadOrStore(shape, st.compile(text()))
	}
	return known.(sqlschema.Statement)
}

// pair compiles a statement with and without the condition on the lease.
func (st *statements) pair(text string) pair {
	leased := leasedSQL
	change, remove := "UPDATE {outbox}", "DELETE FROM {outbox}"
	switch st.dialect {
	case sqlschema.PostgreSQL: // which then reads the lanes once, and not for each row
		leased = leasedPostgreSQL
	case sqlschema.MySQL:
		leased = leasedMySQL
		// By the key, however few rows there are. A full scan would wait for
		// rows that others have locked.
		change, remove = "UPDATE {outbox} AS o FORCE INDEX (PRIMARY)", "DELETE o FROM {outbox} AS o FORCE INDEX (PRIMARY)"
	}
	of := func(leased string) sqlschema.Statement {
		text := strings.NewReplacer("{picked}", picked[st.dialect], "{update}", change, "{delete}", remove).Replace(text)
		return st.compile(strings.ReplaceAll(text, "{leased}", leased))
	}
	return pair{anybody: of(""), leased: of(leased)}
}

// marks are what the dialects spell differently in these statements.
func marks(d sqlschema.Dialect) []string {
	length, join, counted, group := "LENGTH(o.body)", "JOIN", "", ""
	switch d {
	case sqlschema.MySQL:
		join = "STRAIGHT_JOIN"
	case sqlschema.SQLite: // where LENGTH counts characters of a text
		length, join = "LENGTH(CAST(o.body AS blob))", "CROSS JOIN"
	case sqlschema.SQLServer: // where = ignores spaces at the end of a text
		length, counted, group = "DATALENGTH(o.body)", "SET NOCOUNT OFF;\n", ", DATALENGTH(b.ordering_key)"
	}
	one, top := " LIMIT 1", ""
	if d == sqlschema.SQLServer {
		one, top = "", "TOP (1) "
	}
	return []string{"{just one}", one, "{only one}", top, "{length}", "COALESCE(" + length + ", 0)", "{join}", join,
		"{counted}", counted, "{group}", group}
}

// A table that must be read as a whole, such as that of lanes, looks very
// expensive with these settings. With jit on, each statement would be compiled
// first.
const (
	plansSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true), set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('idle_in_transaction_session_timeout', '10000', true)`
	settingsSQL = plansSQL + `, set_config('synchronous_commit', 'off', true)`
)

const (
	leasedSQL = ` AND lane IN (SELECT l.lane FROM {lane} AS l WHERE l.relay = @who)`

	// leasedMySQL is a condition by which MariaDB cannot reorder the join.
	leasedMySQL = ` AND (SELECT COUNT(*) FROM {lane} AS l WHERE l.lane = o.lane AND l.relay = @who) > 0`

	// leasedPostgreSQL is a condition by which no index is chosen. That index
	// scan would read all rows of a lane.
	leasedPostgreSQL = ` AND (lane = ANY (ARRAY(SELECT l.lane FROM {lane} AS l WHERE l.relay = @who))) IS TRUE`
)

// keysMark is replaced by the keys of rows, as numbers.
const keysMark = "{keys}"

// picked are the rows that a statement changes. In PostgreSQL, no plan for it
// reads more than these rows.
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

	// removeAtSQL reads only the places, even by a plan that was made for an
	// empty table: because of LIMIT, the list drives the join. If another row
	// has taken the place, its seq differs. The state is checked again, because
	// the row may have changed during a wait for its lock, by a condition for
	// which no index is chosen.
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

// archiveSQL moves rows to the archive. Where that takes several statements,
// the first one gives the rows a state that nobody else sees, so that the
// others find the same rows.
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

// leaving is the state of rows that are being moved to the archive.
const leaving = "5"

// keys is a condition for rows, with their numbers in the text, because the
// number of arguments is limited.
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
