package publishing

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/effectively-once/once/internal/sqlschema"
)

// form is what makes a difference for the text of a query.
type form struct {
	dialect sqlschema.Dialect

	lanes, ids                 int
	after, key, topic, heads   bool
	bounded, bodiless, delayed bool
	byLane, hot                bool
}

func (t *Tables[O, M, S]) form(q Query[S]) form {
	return form{dialect: t.sql.dialect, lanes: len(q.lanes()), ids: len(q.IDs), after: q.After > 0,
		key: q.OrderingKey != "", topic: q.Topic != "", heads: q.Heads, bounded: q.MostBytes > 0, bodiless: q.Bodiless,
		delayed: q.State == delayed, byLane: len(q.Lanes) > 0, hot: q.Hot()}
}

func (f form) text() string {
	build := f.joined
	if f.dialect == sqlschema.PostgreSQL {
		build = f.streamed
	}
	if f.delayed {
		return "{with} " + build()
	}
	return build()
}

// streamed sends rows as they are found, in PostgreSQL. The sub-selects of a hot query are run one after the other, as
// long as nothing is parallel; there, an order would be a sort of all that is read, with the bodies. The running sum
// does not look into bodies, but only at their lengths.
func (f form) streamed() string {
	order := "ORDER BY place, seq "
	if f.hot {
		order = ""
	}
	columns := f.columns()
	if f.bounded {
		columns += ", COALESCE(octet_length(o.body), 0) AS bytes"
	}
	page := fmt.Sprintf("SELECT * FROM (%s) AS a %sLIMIT @limit", f.each(columns), order)
	if f.bounded {
		page = fmt.Sprintf(`SELECT * FROM (SELECT p.*, SUM(p.bytes) OVER w AS running, ROW_NUMBER() OVER w AS nth
	FROM (%s) AS p WINDOW w AS (%sROWS UNBOUNDED PRECEDING)) AS q WHERE running <= @most OR nth = 1 %[2]s`, page, order)
	}
	return fmt.Sprintf("SELECT %s FROM (%s) AS r", names, page)
}

// joined looks for the keys of rows first, and then for these rows: so that nothing large is sorted or written down
// meanwhile.
func (f form) joined() string {
	where, window, keys := "", "", "o.seq"
	if f.bounded {
		keys += ", {length} AS bytes"
		window = `, SUM(p.bytes) OVER (ORDER BY p.place, p.seq ROWS UNBOUNDED PRECEDING) AS running,
	ROW_NUMBER() OVER (ORDER BY p.place, p.seq) AS nth`
		where = " WHERE q.running <= @most OR q.nth = 1"
	}
	page := fmt.Sprintf("SELECT {top}a.* FROM (%s) AS a ORDER BY a.place, a.seq{limit}", f.each(keys))
	return fmt.Sprintf("SELECT %s FROM (SELECT p.place, p.seq%s FROM (%s) AS p) AS q {join} {outbox} AS o{hint} "+
		"ON o.seq = q.seq%s ORDER BY q.place, q.seq", f.columns(), window, page, where)
}

// names are those of columns.
const names = "lane, seq, wait, attempts, reason, created, changed, id, topic, ordering_key, produced, header, body"

// columns are what is read of a row.
func (f form) columns() string {
	wait, content := "0", "o.header, o.body"
	if f.delayed {
		wait = "COALESCE(o.due - {now}, 0)"
	}
	if f.bodiless {
		content = "'' AS header, {null} AS body"
	}
	return "o.lane, o.seq, " + wait + " AS wait, o.attempts, o.reason, o.created, COALESCE(o.changed, 0) AS changed, " +
		"o.id, o.topic, o.ordering_key, o.produced, " + content
}

// each has a sub-select for each lane, which is a part of an index, read from its beginning. Its place is that of the
// lane in the order that was asked for. Where all rows have to be looked at, it is a sub-select for all lanes.
func (f form) each(columns string) string {
	if f.ids > 0 {
		return f.part("s", f.place(), columns, f.laneIn())
	}
	parts := make([]string, f.lanes)
	for i := range parts {
		place := "0"
		if f.byLane {
			place = strconv.Itoa(i)
		}
		parts[i] = f.part(fmt.Sprint("s", i), place, columns, fmt.Sprint(" = @of", i))
	}
	return strings.Join(parts, "\nUNION ALL ")
}

func (f form) part(alias, place, columns, lane string) string {
	order := "o.seq"
	if f.ids > 0 && f.byLane {
		order = "place, o.seq"
	}
	return fmt.Sprintf("SELECT %s.* FROM (SELECT {top}%s AS place, %s FROM {outbox} AS o{hint}%s "+
		"ORDER BY %s{limit}) AS %[1]s", alias, place, columns, f.where(lane), order)
}

// place is that of the lane of a row.
func (f form) place() string {
	if !f.byLane {
		return "0"
	}
	var b strings.Builder
	for i := range f.lanes {
		fmt.Fprintf(&b, " WHEN @of%d THEN %[1]d", i)
	}
	return "CASE o.lane" + b.String() + " END"
}

func (f form) laneIn() string {
	any := make([]string, f.lanes)
	for i := range any {
		any[i] = fmt.Sprint("@of", i)
	}
	return " IN (" + strings.Join(any, ", ") + ")"
}

// where are the conditions of a sub-select.
func (f form) where(lane string) string {
	var b strings.Builder
	if f.heads {
		fmt.Fprintf(&b, ` LEFT JOIN (SELECT MIN(b.seq) AS seq FROM {outbox} AS b{hint}
	WHERE b.lane%s AND b.state = @state AND b.ordering_key <> ''
	GROUP BY b.ordering_key{group}) AS h ON h.seq = o.seq`, lane)
	}
	fmt.Fprintf(&b, " WHERE o.lane%s AND o.state = @state", lane)
	if f.after {
		b.WriteString(" AND o.seq > @seq")
	}
	if f.key {
		b.WriteString(" AND " + f.same("o.ordering_key", "@ordering"))
	}
	if f.topic {
		b.WriteString(" AND " + f.same("o.topic", "@topic"))
	}
	if f.ids > 0 {
		b.WriteString(" AND " + f.anyID())
	}
	if f.heads {
		b.WriteString(" AND (o.ordering_key = '' OR h.seq IS NOT NULL)")
	}
	return b.String()
}

func (f form) anyID() string {
	any := make([]string, f.ids)
	for i := range any {
		any[i] = fmt.Sprint("@message", i)
	}
	if f.dialect != sqlschema.SQLServer {
		return "o.id IN (" + strings.Join(any, ", ") + ")"
	}
	for i, parameter := range any {
		any[i] = f.same("o.id", parameter)
	}
	return "(" + strings.Join(any, " OR ") + ")"
}

// same compares texts byte by byte, as columns do everywhere but in SQL Server, where = passes over spaces at their
// ends.
func (f form) same(column, parameter string) string {
	if f.dialect == sqlschema.SQLServer {
		return fmt.Sprintf("(%s = %s AND DATALENGTH(%[1]s) = DATALENGTH(%[2]s))", column, parameter)
	}
	return column + " = " + parameter
}
