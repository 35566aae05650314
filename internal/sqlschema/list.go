package sqlschema

import (
	"fmt"
	"strconv"
	"strings"
)

// Listing is what a page of records selects, as far as the text of its statements depends on it.
type Listing struct {
	Operation bool  // @operation
	Scopes    int   // any of @scope0 and so on; 0: all
	Statuses  []int // any of them; none: all
	Unchanged bool  // for @unchanged
	Cause     bool  // @caused
	UUID      bool  // @uuid
}

// passedOver is the number of rows that a page looks at, without the last.
const passedOver = "999"

// openSQL is what [Open] is as SQL, where rows are due that have no end yet.
const openSQL = `status IN (1, 2, 3)`

// Open reports whether these statuses are found without the records that are done: none of them is that of a row
// that has an end.
func Open[T int | int32](statuses []T) bool {
	for _, status := range statuses {
		if status < 1 || status > 3 {
			return false
		}
	}
	return len(statuses) > 0
}

// walk is the index that a page goes along, and so the rows that it looks at.
type walk struct {
	hint  string // where a planner might think otherwise
	rows  string // those that are in the index
	place string // what the index is ordered by; %s is a key
}

func (st *Statements) walk(l Listing) walk {
	w := walk{rows: "", place: "%s"}
	if l.UUID || l.Cause {
		return st.narrow(l)
	}
	switch {
	case Open(l.Statuses):
		w = walk{hint: "{due index}", rows: " AND {open}", place: "{bytes}(%s)"}
	case l.Operation && st.dialect != PostgreSQL && st.dialect != SQLite: // where no index is on it
		w = walk{hint: "{operation index}", rows: " AND {asked}", place: "%s"}
	case st.dialect == MySQL:
		w.hint = "PRIMARY"
	}
	switch {
	case st.dialect == MySQL:
		w.hint = " FORCE INDEX (" + w.hint + ")"
	case st.dialect == SQLServer && w.hint != "":
		w.hint = " WITH (READCOMMITTED, INDEX (" + w.hint + "))"
	case st.dialect == SQLServer:
		w.hint = "{hint}"
	default:
		w.hint = ""
	}
	return w
}

// narrow is the walk to one key, or along the keys with one cause.
func (st *Statements) narrow(l Listing) walk {
	w := walk{place: "%s"}
	if l.UUID {
		w.rows += ` AND r."key" = @uuid`
	}
	if l.Cause {
		w.rows += " AND r.cause = @caused"
	}
	switch {
	case st.dialect == SQLServer && l.UUID:
		w.hint = "{hint}"
	case st.dialect == SQLServer:
		w.hint = " WITH (READCOMMITTED, INDEX ({cause index}))"
	case st.dialect == MySQL && l.UUID:
		w.hint = " FORCE INDEX (PRIMARY)"
	case st.dialect == MySQL:
		w.hint = " FORCE INDEX ({cause index})"
	}
	return w
}

// List returns the statements of a page of records behind the key @after. End yields the key, and its parts, of the
// last row that the page looks at: none if there are fewer to its end. Page yields the records up to the key @until,
// without the bodies of their outcomes.
func (st *Statements) List(l Listing) (end, page Statement) {
	w := st.walk(l)
	place := func(key string) string { return fmt.Sprintf(w.place, key) }
	from := "{table} AS r" + w.hint + " WHERE " + place(`r."key"`) + " > " + place("@after") + w.rows
	order := " ORDER BY " + place(`r."key"`)
	end = st.compile(`SELECT {bytes}(r."key"), r.scope, r.operation, r.id FROM ` + from + order + "{last}")

	columns := strings.Replace(columnsSQL, "THEN r.outcome", "THEN {null}", 1)
	filters := []string{place(`r."key"`) + " <= " + place("@until"), "{known}"}
	switch {
	case l.Operation && st.dialect == SQLite && Open(l.Statuses):
		filters = append(filters, "+{asked}") // with a sign, it is nothing that it looks for an index for
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

// scopes compares exactly: = of SQL Server passes over spaces at the end. SQLite allows 1,000 OR, and more IN a list.
func (st *Statements) scopes(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("@scope%d", i)
	}
	if st.dialect != SQLServer {
		return "r.scope IN (" + strings.Join(all, ", ") + ")"
	}
	for i, scope := range all {
		all[i] = fmt.Sprintf("r.scope = %[1]s AND DATALENGTH(r.scope) = DATALENGTH(%[1]s)", scope)
	}
	return "(" + strings.Join(all, " OR ") + ")"
}
