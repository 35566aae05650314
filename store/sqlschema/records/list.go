package records

import (
	"cmp"
	"context"
	"errors"
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
	next, err := readEnd(ctx, db, end, p)
	if err != nil {
		return once.RecordPage{}, err
	}
	if next != (once.Key{}) {
		p["until"] = st.names.UUID(next.UUID())
	}
	for {
		page, full, err := readPage(ctx, db, records, p, limit)
		if err != nil {
			return once.RecordPage{}, err
		}
		if !full {
			page.Next = next
			return page, nil
		}
		if len(page.Records) > 0 {
			page.Next = page.Records[len(page.Records)-1].Key
			return page, nil
		}
		limit *= 2 // all are damaged, and only the key of a sound record can be Next
		p["limit"] = int64(limit)
	}
}

// readPage reads the records of a page. If it is full, it ends with a sound
// record, and the damaged ones after that are left to the next page.
func readPage(ctx context.Context, db sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params,
	limit int) (page once.RecordPage, full bool, err error) {

	rows, damaged := 0, 0 // damaged: before the last sound record
	err = sqlschema.Each(ctx, db, st.Text, st.Args(p), func(row sqlschema.Rows) error {
		rows++
		r, err := ReadRow(row)
		switch {
		case errors.Is(err, once.ErrCorrupt):
			page.Damaged = append(page.Damaged, err)
		case err != nil:
			return err
		default:
			page.Records, damaged = append(page.Records, r.Seen()), len(page.Damaged)
		}
		return nil
	})
	if full = rows == limit; full {
		page.Damaged = page.Damaged[:damaged]
	}
	return page, full, err
}

// readEnd returns the key of the last row that a page may read: the last sound
// one of several. It is the zero Key if the page reads to the end.
func readEnd(ctx context.Context, db sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params) (last once.Key, err error) {
	rows := 0
	err = sqlschema.Each(ctx, db, st.Text, st.Args(p), func(row sqlschema.Rows) error {
		rows++
		k, err := readKey(row)
		if err == nil {
			last = k
		}
		return ifSound(err)
	})
	if rows < endRows {
		return once.Key{}, err
	}
	return last, err
}

// readKey reads a key and its parts.
func readKey(row sqlschema.Rows) (k once.Key, err error) {
	var digest sqlschema.Digest
	unread, err := sqlschema.Scan(row, columnNames, &digest, &k.Scope, &k.Operation, &k.ID)
	if err == nil && unread != nil {
		err = sqlschema.Damaged(fmt.Sprintf("the row with the key %x", digest), unread)
	}
	return k, cmp.Or(err, checkKey(k, digest))
}

// ifSound returns nil instead of the error of a damaged row.
func ifSound(err error) error {
	if errors.Is(err, once.ErrCorrupt) {
		return nil
	}
	return err
}

// IDs implements FindIDs of [store.IDFinder]. It reads the table, in whatever order is
// fastest, which in PostgreSQL is many times as fast as in the order of keys.
func (st *Statements) IDs(ctx context.Context, db sqlschema.Querier, part string, limit int) (found []once.Key, err error) {
	if (once.Key{Operation: "any", ID: part}).Validate() != nil {
		return nil, nil
	}
	p := sqlschema.Params{"id": part, "limit": int64(min(cmp.Or(max(limit, 0), defaultPage), largestPage))}
	err = sqlschema.Each(ctx, db, st.FindIDs.Text, st.FindIDs.Args(p), func(rows sqlschema.Rows) error {
		k, err := readKey(rows)
		if err == nil {
			found = append(found, k)
		}
		return ifSound(err)
	})
	return found, err
}

// findIDsSQL compares byte by byte: the collations of the column do.
func findIDsSQL(d sqlschema.Dialect) string {
	contains := map[sqlschema.Dialect]string{sqlschema.PostgreSQL: "strpos(r.id, @id)", sqlschema.SQLServer: "CHARINDEX(@id, r.id)"}
	return `{with} SELECT {top}{digest}(r."key"), r.scope, r.operation, r.id FROM {table} AS r{hint} WHERE ` +
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

// A page may read passedOver+endRows rows. The last ones are where it may end: at
// several, because a damaged row has no key to go on from.
const (
	passedOver = "992"
	endRows    = 8
)

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
	end = st.compile(`SELECT {digest}(r."key"), r.scope, r.operation, r.id FROM ` + from + order + "{last}")

	columns := strings.Replace(columnsSQL, "{outcome}", "{null}, NULL", 1)
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
		numbers := make([]string, len(l.Statuses), len(l.Statuses)+1)
		for i, status := range l.Statuses {
			numbers[i] = strconv.Itoa(status)
		}
		numbers = append(numbers, "-1") // damaged, which a page shows whatever it asks for
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
