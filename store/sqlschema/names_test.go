package sqlschema

import (
	"errors"
	"strings"
	"testing"
)

func TestNamesAreCheckedAndQuoted(t *testing.T) {
	for _, c := range []struct {
		dialect        Dialect
		schema, prefix string
		want           string // of Table; empty: refused
	}{
		{PostgreSQL, "", "", `"once_record"`},
		{PostgreSQL, "App", "x1_", `"App"."x1_record"`},
		{MySQL, "app", "", "`app`.`once_record`"},
		{SQLite, "", "_", `"_record"`},
		{SQLite, "main", "", ""},
		{0, "", "", ""},
		{SQLServer, "", "", "[once_record]"},
		{SQLServer, "app", "x_", "[app].[x_record]"},
		{SQLServer, "a]b", "", ""},
		{SQLServer + 1, "", "", ""},
		{PostgreSQL, "", `x"; DROP TABLE y; --`, ""},
		{PostgreSQL, "a.b", "", ""},
		{PostgreSQL, "", "1x", ""},
		{PostgreSQL, "", "größe", ""},
		{PostgreSQL, "", strings.Repeat("x", 33), ""},
		{PostgreSQL, strings.Repeat("x", 64), "", ""},
	} {
		n, err := For(c.dialect, c.schema, c.prefix)
		var refusal Refusal
		if refused := errors.As(err, &refusal); refused != (c.want == "") {
			t.Errorf("For(%v, %q, %q) returned %v", c.dialect, c.schema, c.prefix, err)
		}
		if err == nil && n.Table() != c.want {
			t.Errorf("For(%v, %q, %q) names %s, want %s", c.dialect, c.schema, c.prefix, n.Table(), c.want)
		}
	}
}

func TestLocksDifferByKeyAndNames(t *testing.T) {
	a, _ := For(PostgreSQL, "", "a")
	b, _ := For(PostgreSQL, "", "b")
	inB, _ := For(PostgreSQL, "b", "a")
	one, two := [16]byte{1}, [16]byte{15: 1}
	seen := map[int64]bool{}
	for _, lock := range []int64{a.Lock(one), a.Lock(two), b.Lock(one), inB.Lock(one)} {
		if seen[lock] {
			t.Errorf("two of them share the lock %d", lock)
		}
		seen[lock] = true
	}
	if again, _ := For(PostgreSQL, "", "a"); again.Lock(one) != a.Lock(one) {
		t.Error("the lock of a key is not always the same")
	}
}
