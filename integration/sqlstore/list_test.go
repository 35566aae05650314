package sqlstore_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlstore"
)

// fillKeys inserts records that are done, and open ones.
func (e engine) fillKeys(t *testing.T, db *sql.DB, operation string, status, n int) {
	t.Helper()
	names, err := sqlschema.For(sqlschema.Dialect(e.dialect), "", "")
	must(t, err)
	far, lapsed := fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), "NULL"
	if status != 4 {
		far = "NULL"
	}
	if status == 1 {
		lapsed = "1"
	}
	var rows []string
	for i := range n {
		digest := once.Key{Operation: operation, ID: fmt.Sprint(i)}.UUID()
		key := fmt.Sprintf("x'%x'", digest)
		if e.dialect == sqlstore.PostgreSQL {
			key = fmt.Sprintf("'%x'", digest)
		}
		rows = append(rows, fmt.Sprintf("(%[1]s, '', '%[2]s', '%[3]d', %[4]d, 1, %[1]s, %[5]s, 5, %[6]s, %[6]s, %[6]s, 1, 1)",
			key, operation, i, status, lapsed, far))
		if len(rows) == 500 || i == n-1 {
			mustExec(t, db, "INSERT INTO "+names.Table()+" ("+names.Compiler()(`"key"`).Text+", scope, operation, id, "+
				"status, attempt, owner, lease_until, sum, outcome_until, key_until, due, created, updated) VALUES "+strings.Join(rows, ", "))
			rows = nil
		}
	}
}

// Open records are found without reading those that are done, and any page
// reads a bounded number of rows.
func TestPagesAreBoundedWork(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		db.SetMaxOpenConns(1)
		e.fillKeys(t, db, "usual", 4, 20_000)
		e.fillKeys(t, db, "rare", 4, 7)
		e.fillKeys(t, db, "crashed", 1, 5)
		e.fillKeys(t, db, "stuck", 3, 3)
		names, err := sqlschema.For(sqlschema.Dialect(e.dialect), "", "")
		must(t, err)
		cause := func(id string) [16]byte { return once.Key{Operation: "cause", ID: id}.UUID() }
		for id, of := range map[string]string{"few": "operation IN ('rare', 'stuck')", "many": "operation = 'usual' AND length(id) < 4"} {
			st := names.Compiler()("UPDATE " + names.Table() + " SET cause = @caused WHERE " + of)
			_, err := db.Exec(st.Text, st.Args(sqlschema.Params{"caused": names.UUID(cause(id))})...)
			must(t, err)
		}
		rare := 40
		if e.dialect == sqlstore.PostgreSQL { // which has no index on it
			rare = 2100
			mustExec(t, db, "SET random_page_cost = 1.1")
		}
		for name, want := range map[string]struct {
			query       once.RecordQuery
			found, most int
		}{
			"all":                  {once.RecordQuery{Limit: 1000}, 20_015, 2100},
			"unknown":              {once.RecordQuery{Status: []once.Status{once.Unknown}}, 5, 40},
			"parked, of one":       {once.RecordQuery{Status: []once.Status{once.Parked}, Operation: "rare"}, 0, 40},
			"unchanged":            {once.RecordQuery{Status: []once.Status{once.Running, once.Parked}, Unchanged: time.Hour}, 3, 40},
			"a rare operation":     {once.RecordQuery{Operation: "rare"}, 7, rare},
			"a scope without keys": {once.RecordQuery{Scopes: []string{"nobody"}}, 0, 2100},
			"of a cause":           {once.RecordQuery{Cause: cause("few")}, 10, 60},
			"parked, of a cause":   {once.RecordQuery{Cause: cause("few"), Status: []once.Status{once.Parked}}, 3, 60},
			"of a large cause":     {once.RecordQuery{Cause: cause("many"), Limit: 1000}, 1000, 3100},
			"of no known cause":    {once.RecordQuery{Cause: cause("none")}, 0, 40},
			"by its UUID":          {once.RecordQuery{UUID: once.Key{Operation: "rare", ID: "6"}.UUID()}, 1, 40},
			"expired of a usual":   {once.RecordQuery{Operation: "usual", Status: []once.Status{once.Expired}}, 0, 2100},
		} {
			found := 0
			for q, page := want.query, 0; ; page++ {
				before := e.reads(t, db)
				got, err := s.List(t.Context(), q)
				must(t, err)
				if read := e.reads(t, db) - before; read > want.most {
					t.Errorf("%s: page %d has read %d rows, the limit is %d", name, page, read, want.most)
				}
				found += len(got.Records)
				if q.After = got.Next; q.After == (once.Key{}) {
					break
				}
			}
			if found != want.found {
				t.Errorf("%s: %d records, want %d", name, found, want.found)
			}
		}
	})
}

// reads is the number of rows that the connection has read so far. SQLite does
// not count them, so the next test reads its plans.
func (e engine) reads(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	switch e.dialect {
	case sqlstore.PostgreSQL:
		mustExec(t, db, "SELECT pg_stat_force_next_flush()")
		mustExec(t, db, "SELECT 1")
		must(t, db.QueryRow("SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint FROM pg_stat_user_tables "+
			"WHERE relid = 'once_record'::regclass").Scan(&n))
	case sqlstore.MySQL:
		for _, reads := range status(t, db, "SHOW SESSION STATUS LIKE 'Handler_read%'") {
			n += reads
		}
	}
	return n
}

// status returns numbers by name: MariaDB and MySQL have them in other tables.
func status(t *testing.T, db *sql.DB, show string) map[string]int {
	t.Helper()
	all := make(map[string]int)
	rows, err := db.QueryContext(t.Context(), show)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		must(t, rows.Scan(&name, &n))
		all[name] = n
	}
	must(t, rows.Err())
	return all
}

// The plans of SQLite are searches along the index that has the records.
func TestPlansOfPagesInSQLite(t *testing.T) {
	e := engines[0]
	s, db := e.migrated(t)
	_, err := s.List(t.Context(), once.RecordQuery{})
	must(t, err)
	names, err := sqlschema.For(sqlschema.SQLite, "", "")
	must(t, err)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			e.fillKeys(t, db, "usual", 4, 5000)
			e.fillKeys(t, db, "crashed", 1, 2000)
			mustExec(t, db, "ANALYZE")
		}
		for _, c := range []struct {
			index string
			of    records.Listing
		}{
			{"once_record_open (key>? AND key<?)", records.Listing{Statuses: []int{1, 2, 3}}},
			{"once_record_open (key>? AND key<?)", records.Listing{Statuses: []int{3}, Operation: true, Scopes: 1}},
			{"sqlite_autoindex_once_record_1 (key>? AND key<?)", records.Listing{Operation: true, Unchanged: true}},
			{"sqlite_autoindex_once_record_1 (key>? AND key<?)", records.Listing{Operation: true, Statuses: []int{5}}},
			{"sqlite_autoindex_once_record_1 (key>? AND key<?)", records.Listing{}},
			{"sqlite_autoindex_once_record_1 (key>? AND key<?)", records.Listing{Statuses: []int{3, 4}, Scopes: 2}},
			{"once_record_cause (cause=? AND key>? AND key<?)", records.Listing{Cause: true}},
			{"once_record_cause (cause=? AND key>? AND key<?)", records.Listing{Cause: true, Operation: true, Statuses: []int{1, 3}}},
			{"sqlite_autoindex_once_record_1 (key=?)", records.Listing{UUID: true, Cause: true}},
		} {
			end, page := records.New(names).List(c.of)
			for i, st := range []sqlschema.Statement{end, page} {
				want := c.index
				if i == 0 {
					want = strings.Replace(want, " AND key<?", "", 1)
				}
				plan := e.plan(t, db, st)
				if !strings.Contains(plan, "INDEX "+want) || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP") {
					t.Errorf("analyzed: %v, want %s, got %s\n%s", analyzed, want, plan, st.Text)
				}
			}
		}
	}
}

func (e engine) plan(t *testing.T, db *sql.DB, st sqlschema.Statement) string {
	t.Helper()
	rows, err := db.Query("EXPLAIN QUERY PLAN "+st.Text, st.Args(sqlschema.Params{"operation": "usual", "limit": 10})...)
	must(t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		must(t, rows.Scan(&id, &parent, &unused, &detail))
		all = append(all, detail)
	}
	must(t, rows.Err())
	return strings.Join(all, "; ")
}
