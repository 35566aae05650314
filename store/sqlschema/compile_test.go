package sqlschema

import (
	"slices"
	"testing"
)

func TestParametersBecomePlaceholders(t *testing.T) {
	const text = "SELECT @@rowcount, @key, '@', a@, @limit2 FROM x WHERE \"key\"=@key AND b<@@@ AND id=@id"
	for dialect, want := range map[Dialect]string{
		PostgreSQL: "SELECT @@rowcount, $1::uuid, '@', a@, $2::bigint FROM x WHERE \"key\"=$1::uuid AND b<@@@ AND id=$3::text",
		SQLServer: "SELECT @@rowcount, CAST(@p1 AS binary(16)), '@', a@, CAST(@p2 AS bigint) FROM x WHERE [key]=CAST(@p1 AS binary(16)) " +
			"AND b<@@@ AND id=CAST(@p3 AS nvarchar(255))",
		MySQL:  "SELECT @@rowcount, ?, '@', a@, ? FROM x WHERE `key`=? AND b<@@@ AND id=?",
		SQLite: "SELECT @@rowcount, ?, '@', a@, ? FROM x WHERE \"key\"=? AND b<@@@ AND id=?",
	} {
		names, err := For(dialect, "", "")
		if err != nil {
			t.Fatal(err)
		}
		order := []string{"key", "limit2", "id"} // each is declared once
		if dialect == MySQL || dialect == SQLite {
			order = []string{"key", "limit2", "key", "id"}
		}
		if st := names.Compiler()(text); st.Text != want || !slices.Equal(st.names, order) {
			t.Errorf("%v: got %s with %q, want %s with %q", dialect, st.Text, st.names, want, order)
		}
	}
}
