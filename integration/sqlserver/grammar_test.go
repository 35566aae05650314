package sqlserver_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltest"
)

// variants are names of tables that make a difference for the SQL.
var variants = []struct{ schema, prefix string }{{"", ""}, {"", "x"}, {"app", ""}, {"App_1", "a_b_"}, {"order", "select"}}

func names(t *testing.T, d sqlschema.Dialect, schema, prefix string) sqlschema.Names {
	t.Helper()
	n, err := sqlschema.For(d, schema, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// kinds are the kinds of the statements of a store.
var kinds = map[string][]string{
	"Insert":    {"PredicateSet", "PredicateSet", "SetCommand", "TryCatch"},
	"Take":      {"Update"},
	"Get":       {"Select"},
	"GetMany":   {"Select"},
	"FindIDs":   {"Select"},
	"GetLocked": {"Select"},
	"GetNoWait": {"Select"},
	"Extend":    {"PredicateSet", "Update"},
	"Settle":    {"PredicateSet", "Update"},
	"SettleOwn": {"PredicateSet", "Update"},
	"Forget":    {"PredicateSet", "Delete"},
	"Expire":    {"PredicateSet", "Update"},
	"Due":       {"Select"},
	"Reopen":    {"PredicateSet", "Update"},

	"forget only": {"PredicateSet", "Delete"},
	"expire only": {"PredicateSet", "Update"},

	"end of all":        {"Select"},
	"end of open":       {"Select"},
	"end of operation":  {"Select"},
	"end of cause":      {"Select"},
	"end of UUID":       {"Select"},
	"page of all":       {"Select"},
	"page of open":      {"Select"},
	"page of operation": {"Select"},
	"page of cause":     {"Select"},
	"page of UUID":      {"Select"},
}

// statementsOf returns all statements on records.
func statementsOf(n sqlschema.Names) map[string]string {
	st := records.New(n)
	all := map[string]string{}
	for name, l := range map[string]records.Listing{
		"all":       {},
		"open":      {Operation: true, Scopes: 2, Statuses: []int{1, 2}},
		"operation": {Operation: true, Scopes: 1, Statuses: []int{1, 4}, Unchanged: true},
		"cause":     {Cause: true, Statuses: []int{1}},
		"UUID":      {UUID: true},
	} {
		end, page := st.List(l)
		all["end of "+name], all["page of "+name] = end.Text, page.Text
	}
	forget, expire := st.ForgetOnly(3)
	all["forget only"], all["expire only"] = forget.Text, expire.Text
	v := reflect.ValueOf(*st)
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() {
			if text := v.Field(i).Interface().(sqlschema.Statement).Text; text != "" {
				all[field.Name] = text
			}
		}
	}
	return all
}

func TestStatementsAreTransactSQL(t *testing.T) {
	for _, v := range variants {
		for name, text := range statementsOf(names(t, sqlschema.SQLServer, v.schema, v.prefix)) {
			if err := check(text, kinds[name]...); err != nil {
				t.Errorf("%s with the schema %q and the prefix %q: %v\n%s", name, v.schema, v.prefix, err, text)
			}
		}
	}
}

func TestMigrationsAreTransactSQL(t *testing.T) {
	for _, v := range variants {
		n := names(t, sqlschema.SQLServer, v.schema, v.prefix)
		want := map[string]string{"CREATE TABLE": "CreateTable", "CREATE INDEX": "CreateIndex", "INSERT INTO": "Insert",
			"ALTER TABLE SET": "AlterTableSet", "ALTER TABLE ADD": "AlterTableAddTableElement"}
		for _, m := range n.Migrations() {
			for _, text := range append(m.SQL, m.Row) {
				words := strings.Fields(text)
				begins := words[0] + " " + words[1]
				if words[0] == "ALTER" {
					begins += " " + words[3]
				}
				if err := check(text, want[begins]); err != nil {
					t.Errorf("version %d: %v\n%s", m.Version, err, text)
				}
			}
		}
		for from := range n.Latest() {
			if err := check(n.Print(from), printed(v.schema, from)...); err != nil {
				t.Errorf("what is printed from version %d on: %v\n%s", from, err, n.Print(from))
			}
		}
	}
}

// printed returns the kinds of the statements that Print returns.
func printed(schema string, from int) []string {
	all := []string{"PredicateSet", "PredicateSet", "BeginTransaction"}
	if from == 0 && schema != "" {
		all = append(all, "If")
	}
	if from == 0 {
		all = append(all, "CreateTable", "CreateTable", "AlterTableSet", "Insert")
	}
	if from <= 1 {
		all = append(all, "CreateIndex", "CreateIndex", "Insert")
	}
	if from <= 2 {
		all = append(all, "CreateTable", "CreateTable", "CreateTable", "AlterTableSet")
		all = append(all, "CreateIndex", "CreateIndex", "CreateIndex", "Insert")
	}
	if from <= 3 {
		all = append(all, "CreateTable", "CreateTable", "CreateTable", "CreateTable", "Insert", "AlterTableSet")
		all = append(all, "CreateIndex", "CreateIndex", "Insert")
	}
	for range 7 - max(from, 4) { // columns
		all = append(all, "AlterTableAddTableElement", "Insert")
	}
	return append(all, "CreateIndex", "Insert", "CommitTransaction")
}

// history is a database without tables that keeps the statements it was sent,
// in their order.
type history struct{ asked []string }

func (h *history) Exec(_ context.Context, statement string, _ ...any) (int64, error) {
	h.asked = append(h.asked, statement)
	return 0, nil
}

func (h *history) Query(ctx context.Context, query string, _ ...any) (sqlschema.Rows, error) {
	h.asked = append(h.asked, query)
	zero := sqltest.Recorder{Answer: [][]any{{int64(0)}}}
	return zero.Query(ctx, query)
}

func TestMigrateSpeaksTransactSQL(t *testing.T) {
	for _, v := range variants {
		r := new(history)
		if err := names(t, sqlschema.SQLServer, v.schema, v.prefix).Migrate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		want := [][]string{{"Select"}, {"BeginTransaction"}, {"DeclareVariable", "Execute", "Select"}}
		if v.schema != "" {
			want = append(want, []string{"Select"}, []string{"CreateSchema"})
		}
		want = append(want, []string{"Select"}, []string{"CreateTable"}, []string{"CreateTable"}, []string{"AlterTableSet"},
			[]string{"Insert"}, []string{"CreateIndex"}, []string{"CreateIndex"}, []string{"Insert"},
			[]string{"CreateTable"}, []string{"CreateTable"}, []string{"CreateTable"}, []string{"AlterTableSet"},
			[]string{"CreateIndex"}, []string{"CreateIndex"}, []string{"CreateIndex"}, []string{"Insert"},
			[]string{"CreateTable"}, []string{"CreateTable"}, []string{"CreateTable"}, []string{"CreateTable"}, []string{"Insert"},
			[]string{"AlterTableSet"}, []string{"CreateIndex"}, []string{"CreateIndex"}, []string{"Insert"},
			[]string{"AlterTableAddTableElement"}, []string{"Insert"}, []string{"AlterTableAddTableElement"}, []string{"Insert"},
			[]string{"AlterTableAddTableElement"}, []string{"Insert"}, []string{"CreateIndex"}, []string{"Insert"},
			[]string{"CommitTransaction"})
		if len(r.asked) != len(want) {
			t.Fatalf("Migrate runs %d statements, want %d: %q", len(r.asked), len(want), r.asked)
		}
		for i, text := range r.asked {
			if err := check(text, want[i]...); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	}
}

// The SQL of other databases fails the checks above.
func TestCheckerNoticesOtherDialects(t *testing.T) {
	for d, dialect := range map[sqlschema.Dialect]string{sqlschema.PostgreSQL: "PostgreSQL", sqlschema.MySQL: "MySQL", sqlschema.SQLite: "SQLite"} {
		n := names(t, d, "", "")
		for name, text := range statementsOf(n) {
			if check(text, kinds[name]...) == nil {
				t.Errorf("%s of %s passes for Transact-SQL:\n%s", name, dialect, text)
			}
		}
		if check(n.Migrations()[0].SQL[0], "CreateTable") == nil {
			t.Errorf("the table of %s passes for Transact-SQL", dialect)
		}
	}
}

func TestCheckerNoticesMistakes(t *testing.T) {
	for name, wrong := range map[string]string{
		"LIMIT":                 "SELECT r.id FROM [once_record] AS r LIMIT 5",
		"ON CONFLICT":           "INSERT INTO [once_record] (id) VALUES ('a') ON CONFLICT DO NOTHING",
		"alias of UPDATE":       "UPDATE [once_record] AS r SET id = 'a' WHERE r.attempt = 1",
		"RETURNING":             "INSERT INTO [once_record] (id) VALUES ('a') RETURNING id",
		"FOR UPDATE":            "SELECT r.id FROM [once_record] AS r FOR UPDATE SKIP LOCKED",
		"IF NOT EXISTS":         "CREATE TABLE IF NOT EXISTS [once_record] (id int)",
		"placeholder":           "SELECT r.id FROM [once_record] AS r WHERE r.attempt = ?",
		"boolean column":        "SELECT (r.attempt < r.due) AS later FROM [once_record] AS r",
		"word that is no hint":  "SELECT r.id FROM [once_record] AS r WITH (READFIRST)",
		"reserved word":         "SELECT r.key FROM [once_record] AS r",
		"unknown column":        "SELECT r.retries FROM [once_record] AS r",
		"unknown table":         "SELECT z.id FROM [once_record] AS r",
		"unknown function":      "SELECT now() AS n",
		"unknown variable":      "SELECT r.id FROM [once_record] AS r WHERE r.attempt = @attempt",
		"CASE without a type":   "SELECT CASE WHEN r.attempt = 1 THEN NULL END FROM [once_record] AS r",
		"READPAST on snapshots": "SELECT r.id FROM [once_record] AS r WITH (UPDLOCK, READPAST)",
		"range lock":            "SELECT r.id FROM [once_record] AS r WITH (UPDLOCK, HOLDLOCK)",
		"NULL as a text":        "SELECT r.id FROM [once_record] AS r WHERE r.owner = @p1",
		"open block":            "IF 1 = 1 BEGIN SELECT r.id FROM [once_record] AS r",
		"value too few":         "INSERT INTO [once_record] (id, scope) VALUES ('a')",
		"trailing words":        "SELECT r.id FROM [once_record] AS r WHERE r.attempt = 1 SELEC",
	} {
		first := map[string]string{"S": "Select", "I": "Insert", "U": "Update", "C": "CreateTable"}[wrong[:1]]
		if check(wrong, first) == nil {
			t.Errorf("%s is not noticed in:\n%s", name, wrong)
		}
	}
}
