package publishing

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// form is what the text of a query depends on.
type form struct {
	dialect sqlschema.Dialect

	lanes, ids                        int
	after, key, topic, cause, heads   bool
	bounded, light, bodiless, delayed bool
	placed                            bool
}

func (t *Tables) form(q store.OutgoingQuery, light bool) form {
	return form{dialect: t.sql.dialect, lanes: len(lanesOf(q)), ids: len(q.IDs), after: q.After > 0,
		key: q.OrderingKey != "", topic: q.Topic != "", cause: q.Cause != "", heads: q.Heads, bounded: q.MaxBytes > 0, light: light,
		bodiless: q.Bodiless, delayed: q.State == store.Delayed, placed: t.placed(q)}
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

// streamed is the query for PostgreSQL, which merges the ordered results of the
// sub-selects and sends rows as it finds them. The running sum needs only the
// lengths of bodies. Still it costs half as much as the rest, so a light query
// does without it.
func (f form) streamed() string {
	columns, sum := f.columns(), f.bounded && !f.light
	if sum {
		columns += ", COALESCE(octet_length(o.body), 0) AS bytes"
	}
	page := fmt.Sprintf("SELECT * FROM (%s) AS a ORDER BY seq LIMIT @limit", f.each(columns))
	if sum {
		page = fmt.Sprintf(`SELECT * FROM (SELECT p.*, SUM(p.bytes) OVER w AS running, ROW_NUMBER() OVER w AS nth
	FROM (%s) AS p WINDOW w AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)) AS q WHERE running <= @most OR nth = 1`, page)
	}
	all := rowNames + ", " + f.dialect.Bytes("r.body", "body")
	if f.placed {
		all += ", place"
	}
	return fmt.Sprintf("SELECT %s FROM (%s) AS r ORDER BY seq", all, page)
}

// joined first finds the keys of rows, and then reads these rows. So nothing
// large is sorted, or written to temporary storage.
func (f form) joined() string {
	where, window, keys := "", "", "o.seq"
	if f.bounded {
		keys += ", {length} AS bytes"
		window = `, SUM(p.bytes) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) AS running,
	ROW_NUMBER() OVER (ORDER BY p.seq) AS nth`
		where = " WHERE q.running <= @most OR q.nth = 1"
	}
	page := fmt.Sprintf("SELECT {top}a.* FROM (%s) AS a ORDER BY a.seq{limit}", f.each(keys))
	return fmt.Sprintf("SELECT %s FROM (SELECT p.seq%s FROM (%s) AS p) AS q {join} {outbox} AS o{hint} "+
		"ON o.seq = q.seq%s ORDER BY q.seq", f.columns()+", NULL AS body_hex", window, page, where)
}

// names are the names of the columns of a query.
const (
	rowNames = "lane, seq, wait, attempts, reason, created, changed, id, topic, ordering_key, produced, cause, header"
	names    = rowNames + ", body, body"
)

// columns is what the query reads of a row.
func (f form) columns() string {
	wait, content := "0", "o.header, o.body"
	switch {
	case f.delayed:
		wait = sqlschema.Until("o.due")
	case f.light: // only delayed messages have a wait
		wait, content = heavySQL, "o.header, CASE WHEN octet_length(o.body) <= @small THEN o.body END AS body"
	}
	if f.bodiless {
		content = "'' AS header, {null} AS body"
	}
	if f.placed {
		content += ", o.ctid AS place"
	}
	return "o.lane, o.seq, " + wait + " AS wait, o.attempts, o.reason, o.created, COALESCE(o.changed, 0) AS changed, " +
		"o.id, o.topic, o.ordering_key, o.produced, o.cause, " + content
}

// heavySQL marks a message whose body a light query leaves out, in place of the
// wait.
const heavySQL = "CASE WHEN octet_length(o.body) > @small THEN 1 ELSE 0 END"

// each has a sub-select for each lane, which reads a part of the index from its
// beginning. A query by ID has to read all rows, so it has one sub-select for
// all lanes.
func (f form) each(columns string) string {
	if f.ids > 0 {
		return f.part("s", columns, f.laneIn())
	}
	parts := make([]string, f.lanes)
	for i := range parts {
		parts[i] = f.part(fmt.Sprint("s", i), columns, fmt.Sprint(" = @of", i))
	}
	return strings.Join(parts, "\nUNION ALL ")
}

func (f form) part(alias, columns, lane string) string {
	return fmt.Sprintf("SELECT %s.* FROM (SELECT {top}%s FROM {outbox} AS o{hint}%s ORDER BY o.seq{limit}) AS %[1]s",
		alias, columns, f.where(lane))
}

func (f form) laneIn() string {
	any := make([]string, f.lanes)
	for i := range any {
		any[i] = fmt.Sprint("@of", i)
	}
	return " IN (" + strings.Join(any, ", ") + ")"
}

// where returns the conditions of a sub-select.
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
		b.WriteString(" AND " + f.dialect.Same("o.ordering_key", "@ordering"))
	}
	if f.topic {
		b.WriteString(" AND " + f.dialect.Same("o.topic", "@topic"))
	}
	if f.cause {
		b.WriteString(" AND " + f.dialect.Same("o.cause", "@cause"))
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
		any[i] = f.dialect.Same("o.id", parameter)
	}
	return "(" + strings.Join(any, " OR ") + ")"
}
