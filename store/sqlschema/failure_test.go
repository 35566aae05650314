package sqlschema

import "testing"

type coded struct{ state string }

func (c coded) Error() string    { return c.state }
func (c coded) SQLState() string { return c.state }

func TestSQLStatesAreClassified(t *testing.T) {
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
