package records

import (
	"reflect"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltest"
)

// statementsOf returns all statements of a dialect.
func statementsOf(t *testing.T, d sqlschema.Dialect) map[string]sqlschema.Statement {
	t.Helper()
	n, err := sqlschema.For(d, "", "")
	if err != nil {
		t.Fatal(err)
	}
	st := New(n)
	all := map[string]sqlschema.Statement{}
	for name, l := range listings {
		all["end of "+name], all["page of "+name] = st.List(l)
	}
	all["forget only"], all["expire only"] = st.ForgetOnly(2)
	v := reflect.ValueOf(*st)
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() {
			if st := v.Field(i).Interface().(sqlschema.Statement); st.Text != "" {
				all[field.Name] = st
			}
		}
	}
	return all
}

var listings = map[string]Listing{
	"all":         {},
	"open":        {Statuses: []int{1, 2}},
	"done":        {Statuses: []int{1, 4}, Scopes: 2},
	"operation":   {Operation: true, Unchanged: true},
	"open of one": {Operation: true, Statuses: []int{3}},
}

func TestStatementsAreComplete(t *testing.T) {
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite, sqlschema.SQLServer} {
		all := statementsOf(t, d)
		want := map[sqlschema.Dialect]int{sqlschema.PostgreSQL: 28, sqlschema.MySQL: 27}
		if len(all) != max(26, want[d]) {
			t.Errorf("dialect %v has %d statements", d, len(all))
		}
		texts := make(map[string][]any)
		for _, st := range all {
			texts[st.Text] = st.Args(nil)
		}
		sqltest.CheckComplete(t, d, texts)
	}
}

func TestArgsKeepTheirOrder(t *testing.T) {
	st := statementsOf(t, sqlschema.SQLite)["Get"]
	if got := st.Args(sqlschema.Params{"key": "k", "other": "o"}); !reflect.DeepEqual(got, []any{"k"}) {
		t.Errorf("Args returned %v", got)
	}
	repeated := statementsOf(t, sqlschema.MySQL)["Settle"]
	args := repeated.Args(sqlschema.Params{"status": 4})
	if n := strings.Count(repeated.Text, "?"); n != len(args) || args[0] != 4 || args[1] != 4 {
		t.Errorf("%d arguments %v for %d placeholders: a parameter that occurs again is passed again", len(args), args, n)
	}
}
