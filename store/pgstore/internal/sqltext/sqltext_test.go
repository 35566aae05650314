package sqltext

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestKindOfAText(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want Kind
	}{
		{"SELECT 1", Rows},
		{"select\n1", Rows},
		{"SELECT(1)", Rows},
		{"Insert INTO t VALUES ($1)", Rows},
		{"UPDATE t SET n = 1;", Rows},
		{"DELETE FROM t ; \n", Rows},
		{"WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x", Rows},
		{"MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", Rows},
		{"VALUES (1), (2)", Rows},
		{"-- name: GetAuthor :one\nSELECT * FROM author", Rows},
		{"/* route='/pay' */ SELECT 1", Rows},
		{" \t\r\n/*+ SeqScan(t) */\n-- two\n-- lines\nSELECT 1", Rows},

		{"", Other},
		{";", Other},
		{"-- nothing but a comment", Other},
		{"/* not closed", Other},
		{"SELECT 1; SELECT 2", Other},
		{"SELECT 1; UPDATE t SET n = 1", Other},
		{"INSERT INTO t VALUES ('a; commit')", Rows},
		{`INSERT INTO t VALUES (E'a\'; commit', 'it''s; commit', "b; commit", $t$c; commit$t$, $$d; commit$$, $1) -- ; commit`, Rows},
		{"INSERT INTO t VALUES (e'\\\\'); commit", Control},
		{"SELECT 1; commit", Control},
		{"; commit", Control},
		{"/* a /* nested */ comment */ commit", Control},
		{"\fcommit", Control},
		{"-- x\rcommit", Control},
		{"SELECT 1; SELECT 2; DO $$ BEGIN COMMIT; END $$", Other},
		{"start_order", Other},
		{"commit2", Other},
		{"PREPARE q AS SELECT * FROM transaction", Other},
		{"(SELECT 1) UNION (SELECT 2)", Other},
		{"TABLE t", Other},
		{"EXPLAIN ANALYZE DELETE FROM t", Other},
		{"CALL settle_all()", Other},
		{"DO $$ BEGIN PERFORM 1; END $$", Other},
		{"SET LOCAL lock_timeout = '1s'", Other},
		{"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", Other},
		{"LISTEN paid", Other},
		{"NOTIFY paid", Other},
		{"SAVEPOINT a", Other},
		{"RELEASE a", Other},
		{"ROLLBACK TO a", Other},
		{"rollback work to savepoint a", Other},
		{"PREPARE p AS SELECT 1", Other},
		{"COPY t FROM STDIN", Other},
		{"CREATE TABLE selection (n int)", Other},
		{"selection", Other},

		{"BEGIN", Control},
		{"begin isolation level serializable", Control},
		{"START TRANSACTION", Control},
		{"COMMIT", Control},
		{"commit;", Control},
		{"COMMIT AND CHAIN", Control},
		{"COMMIT; SELECT 1", Control},
		{"COMMIT PREPARED 'a'", Control},
		{"END", Control},
		{"ABORT", Control},
		{"ROLLBACK", Control},
		{"ROLLBACK; SELECT 1 AS to", Control},
		{"ROLLBACK PREPARED 'a'", Control},
		{"PREPARE TRANSACTION 'a'", Control},
		{"-- harmless\nCOMMIT", Control},
		{"/* harmless */ /* as well */ rollback", Control},
	} {
		if got := EffectsOf(c.sql).Kind; got != c.want {
			t.Errorf("the kind of %q is %d, want %d", c.sql, got, c.want)
		}
	}
}

func TestStatementsThatMeanTheSameInABatch(t *testing.T) {
	for _, c := range []struct {
		name string
		sql  string
		args []any
		want bool
	}{
		{"no arguments", "SELECT 1", nil, true},
		{"values", "SELECT $1, $2", []any{1, "a"}, true},
		{"no value", "SELECT $1", []any{nil}, true},
		{"a rewriter", "SELECT @n", []any{pgx.NamedArgs{"n": 1}}, true},
		{"an exec mode", "SELECT $1", []any{pgx.QueryExecModeSimpleProtocol, 1}, false},
		{"formats", "SELECT 1", []any{pgx.QueryResultFormats{pgx.TextFormatCode}}, false},
		{"formats by type", "SELECT 1", []any{pgx.QueryResultFormatsByOID{23: pgx.TextFormatCode}}, false},
		{"what may be two statements", "SELECT 1; SELECT 2", nil, false},
		{"what is not rows", "SET LOCAL work_mem = '1MB'", nil, false},
		{"the end of a transaction", "COMMIT", nil, false},
	} {
		if got := Batchable(c.sql, c.args); got != c.want {
			t.Errorf("%s: Batchable is %t, want %t", c.name, got, c.want)
		}
	}
}

func TestChangesOfTheSearchPathAreFound(t *testing.T) {
	for sql, want := range map[string]bool{
		"SET LOCAL search_path = tenant":                      true,
		"set search_path to tenant":                           true,
		"SELECT set_config('search_path', $1, true)":          true,
		"SHOW search_path":                                    false,
		"SELECT current_setting('search_path')":               false,
		"SET LOCAL lock_timeout = '1s'":                       false,
		"SELECT pg_catalog.set_config( 'search_path', '', t)": true,
	} {
		if got := setsSearchPath(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}

func TestStatementsOfSavepointsAreFound(t *testing.T) {
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
		if got := EffectsOf(sql).Savepoint; got != want {
			t.Errorf("EffectsOf(%q).Savepoint is %t, want %t", sql, got, want)
		}
	}
}

type rewriter struct{}

func (rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return "SAVEPOINT a", nil, nil
}

func TestRewrittenStatementsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		args []any
		want bool
	}{
		"nothing":                 {nil, false},
		"a value":                 {[]any{1}, false},
		"names":                   {[]any{pgx.NamedArgs{}}, false},
		"strict names":            {[]any{pgx.StrictNamedArgs{}}, false},
		"a rewriter":              {[]any{rewriter{}}, true},
		"after options":           {[]any{pgx.QueryExecModeExec, pgx.QueryResultFormats{1}, rewriter{}}, true},
		"a value like a rewriter": {[]any{1, rewriter{}}, false},
	} {
		if got := Rewritten(c.args); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
