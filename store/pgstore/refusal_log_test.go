package pgstore

import (
	"os"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/sqlschema"
)

// A refused duplicate leaves an ERROR in the server's log. The STATEMENT below
// it says that nothing is wrong, and the documentation shows that line.
func TestRefusalsExplainThemselvesInTheLog(t *testing.T) {
	page, err := os.ReadFile("../../docs/stores/postgresql.md")
	if err != nil {
		t.Fatal(err)
	}
	names, err := sqlschema.For(sqlschema.PostgreSQL, "", "")
	if err != nil {
		t.Fatal(err)
	}
	all := newStatements(names, oneTableMarks())
	for name, sql := range map[string]string{"open": all.open, "look": all.look} {
		if !strings.HasPrefix(sql, refusalSQL) {
			t.Errorf("%s begins with %.80q", name, sql)
		}
	}
	shown, _, _ := strings.Cut(all.look, ",\n")
	if line := "STATEMENT:  " + shown + ", …\n"; !strings.Contains(string(page), line) {
		t.Errorf("docs/stores/postgresql.md does not have the line\n%s", line)
	}
}
