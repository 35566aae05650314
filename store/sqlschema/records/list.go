package records

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
)

const defaultPage, largestPage = 100, 1000

var lastUUID = [16]byte(slices.Repeat([]byte{255}, 16))

// Page implements List of [once.Lister]. The order is that of the digests of
// keys, so no change moves a record from one page to another. A page reads at
// most 1,000 rows: of those that are running, unknown or parked if the query
// asks for no others, else of those of its operation if the dialect has an index
// for that, else of all.
func (st *Statements) Page(ctx context.Context, db sqlschema.Querier, q once.RecordQuery) (once.RecordPage, error) {
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	p := sqlschema.Params{"operation": q.Operation, "after": st.names.UUID([16]byte{}), "until": st.names.UUID(lastUUID),
		"unchanged": q.Unchanged.Microseconds(), "limit": int64(limit),
		"caused": st.names.UUID(q.Cause), "uuid": st.names.UUID(q.UUID)}
	for i, scope := range q.Scopes {
		p[fmt.Sprint("scope", i)] = scope
	}
	if q.After != (once.Key{}) {
		p["after"] = st.names.UUID(q.After.UUID())
	}
	end, records := st.List(listing(q))
	var page once.RecordPage
	var err error
	if page.Next, err = readEnd(ctx, db, end, p); err != nil {
		return once.RecordPage{}, err
	}
	if page.Next != (once.Key{}) {
		p["until"] = st.names.UUID(page.Next.UUID())
	}
	err = sqlschema.Each(ctx, db, records.Text, records.Args(p), func(rows sqlschema.Rows) error {
		r, err := ReadRow(rows)
		page.Records = append(page.Records, r.Seen())
		return err
	})
	if err != nil {
		return once.RecordPage{}, err
	}
	if len(page.Records) == limit {
		page.Next = page.Records[limit-1].Key
	}
	return page, nil
}

// readEnd returns the key of the last row that a page may read. It is the zero
// Key if the page reads to the end.
func readEnd(ctx context.Context, db sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params) (k once.Key, err error) {
	err = sqlschema.Each(ctx, db, st.Text, st.Args(p), func(rows sqlschema.Rows) error {
		var digest []byte
		if err := rows.Scan(&digest, &k.Scope, &k.Operation, &k.ID); err != nil {
			return err
		}
		return checkKey(k, digest)
	})
	return k, err
}

// IDs implements FindIDs of [store.IDFinder]. It reads the table, in whatever order is
// fastest, which in PostgreSQL is many times as fast as in the order of keys.
func (st *Statements) IDs(ctx context.Context, db sqlschema.Querier, part string, limit int) (found []once.Key, err error) {
	if (once.Key{Operation: "any", ID: part}).Validate() != nil {
		return nil, nil
	}
	p := sqlschema.Params{"id": part, "limit": int64(min(cmp.Or(max(limit, 0), defaultPage), largestPage))}
	err = sqlschema.Each(ctx, db, st.FindIDs.Text, st.FindIDs.Args(p), func(rows sqlschema.Rows) error {
		var digest []byte
		var k once.Key
		if err := rows.Scan(&digest, &k.Scope, &k.Operation, &k.ID); err != nil {
			return err
		}
		found = append(found, k)
		return checkKey(k, digest)
	})
	return found, err
}

// findIDsSQL compares byte by byte: the collations of the column do.
func findIDsSQL(d sqlschema.Dialect) string {
	contains := map[sqlschema.Dialect]string{sqlschema.PostgreSQL: "strpos(r.id, @id)", sqlschema.SQLServer: "CHARINDEX(@id, r.id)"}
	return `{with} SELECT {top}{bytes}(r."key"), r.scope, r.operation, r.id FROM {table} AS r{hint} WHERE ` +
		cmp.Or(contains[d], "INSTR(r.id, @id)") + " > 0 AND {known}{limit}"
}

func listing(q once.RecordQuery) Listing {
	l := Listing{Operation: q.Operation != "", Scopes: len(q.Scopes), Unchanged: q.Unchanged > 0,
		Cause: q.Cause != [16]byte{}, UUID: q.UUID != [16]byte{}}
	for _, status := range q.Status {
		l.Statuses = append(l.Statuses, int(status))
	}
	return l
}

// Listing is what the text of the statements for a page of records depends on.
type Listing struct {
	Operation bool  // @operation
	Scopes    int   // any of @scope0 and so on; all if 0
	Statuses  []int // any of them; all if empty
	Unchanged bool  // not changed for @unchanged
	Cause     bool  // @caused
	UUID      bool  // @uuid
}

// passedOver is one less than the number of rows that a page may read.
const passedOver = "999"

// isOpen reports whether the index on open records has all records with these
// statuses.
func isOpen(statuses []int) bool {
	for _, status := range statuses {
		if status < 1 || status > 3 {
			return false
		}
	}
	return len(statuses) > 0
}

// walk is the index along which a page reads.
type walk struct {
	hint  string // makes the planner use the index
	rows  string // the condition of rows in the index
	place string // what the index is ordered by; %s is the key
}

func (st *Statements) walk(l Listing) walk {
	w := walk{rows: "", place: "%s"}
	if l.UUID || l.Cause {
		return st.narrow(l)
	}
	switch {
	case isOpen(l.Statuses):
		w = walk{hint: "{due index}", rows: " AND {open}", place: "{bytes}(%s)"}
	case l.Operation && st.dialect != sqlschema.PostgreSQL && st.dialect != sqlschema.SQLite: // which have no index on it
		w = walk{hint: "{operation index}", rows: " AND {asked}", place: "%s"}
	case st.dialect == sqlschema.MySQL:
		w.hint = "PRIMARY"
	}
	switch {
	case st.dialect == sqlschema.MySQL:
		w.hint = " FORCE INDEX (" + w.hint + ")"
	case st.dialect == sqlschema.SQLServer && w.hint != "":
		w.hint = " WITH (READCOMMITTED, INDEX (" + w.hint + "))"
	case st.dialect == sqlschema.SQLServer:
		w.hint = "{hint}"
	default:
		w.hint = ""
	}
	return w
}

// narrow is the walk to one key, or along the records with one cause.
func (st *Statements) narrow(l Listing) walk {
	w := walk{place: "%s"}
	if l.UUID {
		w.rows += ` AND r."key" = @uuid`
	}
	if l.Cause {
		w.rows += " AND r.cause = @caused"
	}
	switch {
	case st.dialect == sqlschema.SQLServer && l.UUID:
		w.hint = "{hint}"
	case st.dialect == sqlschema.SQLServer:
		w.hint = " WITH (READCOMMITTED, INDEX ({cause index}))"
	case st.dialect == sqlschema.MySQL && l.UUID:
		w.hint = " FORCE INDEX (PRIMARY)"
	case st.dialect == sqlschema.MySQL:
		w.hint = " FORCE INDEX ({cause index})"
	}
	return w
}

// List returns the statements of a page of records after the key @after. End
// returns the key, and its parts, of the last row that the page may read, or no
// row if the page reads to the end. Page returns the records up to the key
// @until, without the bodies of their outcomes.
func (st *Statements) List(l Listing) (end, page sqlschema.Statement) {
	w := st.walk(l)
	place := func(key string) string { return fmt.Sprintf(w.place, key) }
	from := "{table} AS r" + w.hint + " WHERE " + place(`r."key"`) + " > " + place("@after") + w.rows
	order := " ORDER BY " + place(`r."key"`)
	end = st.compile(`SELECT {bytes}(r."key"), r.scope, r.operation, r.id FROM ` + from + order + "{last}")

	columns := strings.Replace(columnsSQL, "THEN r.outcome", "THEN {null}", 1)
	filters := []string{place(`r."key"`) + " <= " + place("@until"), "{known}"}
	switch {
	case l.Operation && st.dialect == sqlschema.SQLite && isOpen(l.Statuses):
		filters = append(filters, "+{asked}") // because of the sign, SQLite looks for no index on it
	case l.Operation:
		filters = append(filters, "{asked}")
	}
	if l.Scopes > 0 {
		filters = append(filters, st.scopes(l.Scopes))
	}
	if len(l.Statuses) > 0 {
		numbers := make([]string, len(l.Statuses))
		for i, status := range l.Statuses {
			numbers[i] = strconv.Itoa(status)
		}
		filters = append(filters, "({status}) IN ("+strings.Join(numbers, ", ")+")")
	}
	if l.Unchanged {
		filters = append(filters, "r.updated <= {now} - @unchanged")
	}
	from += " AND " + strings.Join(filters, " AND ")
	return end, st.compile("{with} SELECT {top}" + columns + " FROM " + from + order + "{limit}")
}

// scopes is the condition for any of n scopes. It is an IN where that compares
// exactly, because SQLite allows no more than 1,000 ORs.
func (st *Statements) scopes(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("@scope%d", i)
	}
	if st.dialect != sqlschema.SQLServer {
		return "r.scope IN (" + strings.Join(all, ", ") + ")"
	}
	for i, scope := range all {
		all[i] = st.dialect.Same("r.scope", scope)
	}
	return "(" + strings.Join(all, " OR ") + ")"
}
