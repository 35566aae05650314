package sqlschema

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// statementsOf are all that a store of a dialect runs.
func statementsOf(t *testing.T, d Dialect) map[string]Statement {
	t.Helper()
	n, err := For(d, "", "")
	if err != nil {
		t.Fatal(err)
	}
	st := n.Statements()
	all := map[string]Statement{}
	for name, l := range listings {
		all["end of "+name], all["page of "+name] = st.List(l)
	}
	all["forget only"], all["expire only"] = st.ForgetOnly(2)
	if putOff, some := st.PutOff(); some {
		all["put off"] = putOff
	}
	v := reflect.ValueOf(*st)
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() {
			all[field.Name] = v.Field(i).Interface().(Statement)
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
	for _, d := range []Dialect{PostgreSQL, MySQL, SQLite, SQLServer} {
		all := statementsOf(t, d)
		want := map[Dialect]int{PostgreSQL: 25}
		if len(all) != max(24, want[d]) {
			t.Errorf("dialect %v has %d statements", d, len(all))
		}
		for name, st := range all {
			if strings.ContainsAny(strings.NewReplacer("@@", "", "@p", "").Replace(st.Text), "{}@") {
				t.Errorf("%s of dialect %v is not filled in:\n%s", name, d, st.Text)
			}
			want := strings.Count(st.Text, "?")
			if numbered := placeholder[d]; numbered != "" {
				for want = 0; strings.Contains(st.Text, fmt.Sprintf(numbered, want+1)); want++ {
				}
			}
			if got := len(st.Args(Params{})); got != want {
				t.Errorf("%s of dialect %v has %d arguments for %d placeholders:\n%s", name, d, got, want, st.Text)
			}
		}
	}
}

var placeholder = map[Dialect]string{PostgreSQL: "$%d::", SQLServer: "(@p%d AS "}

func TestArgsKeepTheirOrder(t *testing.T) {
	st := statementsOf(t, SQLite)["Get"]
	if got := st.Args(Params{"key": "k", "other": "o"}); !reflect.DeepEqual(got, []any{"k"}) {
		t.Errorf("Args returned %v", got)
	}
	repeated := statementsOf(t, MySQL)["Settle"]
	args := repeated.Args(Params{"status": 4})
	if n := strings.Count(repeated.Text, "?"); n != len(args) || args[0] != 4 || args[1] != 4 {
		t.Errorf("%d arguments %v for %d placeholders: a parameter that occurs again is passed again", len(args), args, n)
	}
}

type coded struct{ state string }

func (c coded) Error() string    { return c.state }
func (c coded) SQLState() string { return c.state }

func TestPostgresFailures(t *testing.T) {
	for state, want := range map[string]Failure{
		"40001": Conflict, "40P01": Conflict, "40003": Other, "55P03": LockTimeout,
		"23505": Constraint, "23514": Constraint, "22001": Refused, "22021": Refused, "54000": Refused,
		"08006": Other, "53300": Other, "57014": Other, "25P02": Aborted, "57P01": Other, "": Other,
	} {
		if got := PostgreSQL.Failure(coded{state}); got != want {
			t.Errorf("%q means %v, want %v", state, got, want)
		}
	}
	if got := MySQL.Failure(coded{"40001"}); got != Other {
		t.Errorf("in MySQL, an error of PostgreSQL means %v", got)
	}
}
