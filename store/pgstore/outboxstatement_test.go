package pgstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestNests(t *testing.T) {
	for sql, want := range map[string]bool{
		"SELECT 1":                               false,
		"SELECT 1; SELECT 2;":                    false,
		"(SELECT 1) UNION (SELECT 2)":            false,
		" -- a comment\n(SELECT 1)":              false,
		"":                                       false,
		";;":                                     false,
		"/* nothing */":                          false,
		"INSERT INTO t VALUES ('; SAVEPOINT a')": false,
		"SET LOCAL lock_timeout = '1s'":          false,
		"DO $$ BEGIN SAVEPOINT a; END $$":        false, // which PL/pgSQL does not have
		"LOCK TABLE t":                           false,
		"PREPARE p AS SELECT 1":                  false,
		"EXECUTE p":                              false,

		"SAVEPOINT a":                  true,
		"savepoint a":                  true,
		"SELECT 1; SAVEPOINT a":        true,
		"/* x */ ; -- y\n savepoint a": true,
		"ROLLBACK TO a":                true,
		"RELEASE a":                    true,
		"add_row":                      true, // the name of a prepared statement
		`"quoted"`:                     true,
		"INSERT INTO t VALUES ($$;$$); SAVEPOINT a": true,
	} {
		if got := nests(sql); got != want {
			t.Errorf("nests(%q) is %t, want %t", sql, got, want)
		}
		if got := judge(sql).nests; got != want {
			t.Errorf("judge(%q).nests is %t, want %t", sql, got, want)
		}
	}
}

type rewriter struct{}

func (rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return "SAVEPOINT a", nil, nil
}

func TestIsRewritten(t *testing.T) {
	for name, c := range map[string]struct {
		args []any
		want bool
	}{
		"nothing":                 {nil, false},
		"a value":                 {[]any{1}, false},
		"names":                   {[]any{pgx.NamedArgs{}}, false},
		"strict names":            {[]any{pgx.StrictNamedArgs{}}, false},
		"a rewriter":              {[]any{rewriter{}}, true},
		"behind options":          {[]any{pgx.QueryExecModeExec, pgx.QueryResultFormats{1}, rewriter{}}, true},
		"a value like a rewriter": {[]any{1, rewriter{}}, false},
	} {
		if got := isRewritten(c.args); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestChannelOf(t *testing.T) {
	long := `"a_schema_with_a_name_that_is_quite_long"."a_prefix_of_thirty_two_letters__outbox"`
	for table, want := range map[string]string{
		`"public"."once_outbox"`: "public.once_outbox",
		`public."once_outbox"`:   "public.once_outbox",
	} {
		if got := channelOf(table); got != want {
			t.Errorf("the channel of %s is %s, want %s", table, got, want)
		}
	}
	if got := channelOf(long); len(got) > longestChannel || got == channelOf(long+"2") {
		t.Errorf("the channel of a long name is %s", got)
	}
}
