// Package sqltest has a database that records the statements it is sent, for
// tests of the packages below sqlschema.
package sqltest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/sqlschema"
)

// Recorder is a [sqlschema.Querier] that records statements. Each statement
// changes one row, and each query returns the rows of Answer.
type Recorder struct {
	Asked  map[string][]any // the arguments by the text, those of the last call
	Answer [][]any
}

// Exec implements [sqlschema.Querier].
func (r *Recorder) Exec(_ context.Context, statement string, args ...any) (int64, error) {
	r.Record(statement, args)
	return 1, nil
}

// Query implements [sqlschema.Querier].
func (r *Recorder) Query(_ context.Context, query string, args ...any) (sqlschema.Rows, error) {
	r.Record(query, args)
	return &rows{left: r.Answer}, nil
}

// Record records a statement.
func (r *Recorder) Record(statement string, args []any) {
	if r.Asked == nil {
		r.Asked = make(map[string][]any)
	}
	r.Asked[statement] = args
}

type rows struct {
	left [][]any
	now  []any
}

func (r *rows) Next() bool {
	if len(r.left) == 0 {
		return false
	}
	r.now, r.left = r.left[0], r.left[1:]
	return true
}

// Scan leaves a destination alone if its value is nil.
func (r *rows) Scan(dest ...any) error {
	if len(dest) != len(r.now) {
		return fmt.Errorf("%d destinations for %d columns", len(dest), len(r.now))
	}
	for i, value := range r.now {
		if value != nil {
			reflect.ValueOf(dest[i]).Elem().Set(reflect.ValueOf(value))
		}
	}
	return nil
}

func (r *rows) Err() error { return nil }
func (r *rows) Close()     {}

// CheckComplete reports statements in which a name in braces or a parameter was
// not filled in, and those whose arguments do not match their placeholders.
func CheckComplete(t testing.TB, d sqlschema.Dialect, asked map[string][]any) {
	t.Helper()
	numbered := map[sqlschema.Dialect]string{sqlschema.PostgreSQL: "$%d::", sqlschema.SQLServer: "(@p%d AS "}[d]
	for text, args := range asked {
		if strings.ContainsAny(notMarks.Replace(text), "{}@") {
			t.Errorf("a statement of dialect %v is not filled in:\n%s", d, text)
		}
		want := strings.Count(text, "?")
		if numbered != "" {
			for want = 0; strings.Contains(text, fmt.Sprintf(numbered, want+1)); want++ {
			}
		}
		if len(args) != want {
			t.Errorf("dialect %v has %d arguments for %d placeholders:\n%s", d, len(args), want, text)
		}
	}
}

// notMarks removes what looks like a mark: functions and parameters of SQL
// Server, and arrays of PostgreSQL.
var notMarks = strings.NewReplacer("@@", "", "@p", "", "'{", "", "}'", "")
