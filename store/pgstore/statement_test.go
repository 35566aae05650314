package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want kind
	}{
		{"SELECT 1", plain},
		{"select\n1", plain},
		{"SELECT(1)", plain},
		{"Insert INTO t VALUES ($1)", plain},
		{"UPDATE t SET n = 1;", plain},
		{"DELETE FROM t ; \n", plain},
		{"WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x", plain},
		{"MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", plain},
		{"VALUES (1), (2)", plain},
		{"-- name: GetAuthor :one\nSELECT * FROM author", plain},
		{"/* route='/pay' */ SELECT 1", plain},
		{" \t\r\n/*+ SeqScan(t) */\n-- two\n-- lines\nSELECT 1", plain},

		{"", other},
		{";", other},
		{"-- nothing but a comment", other},
		{"/* not closed", other},
		{"SELECT 1; SELECT 2", other},
		{"SELECT 1; UPDATE t SET n = 1", other},
		{"INSERT INTO t VALUES ('a; commit')", plain},
		{`INSERT INTO t VALUES (E'a\'; commit', 'it''s; commit', "b; commit", $t$c; commit$t$, $$d; commit$$, $1) -- ; commit`, plain},
		{"INSERT INTO t VALUES (e'\\\\'); commit", control},
		{"SELECT 1; commit", control},
		{"; commit", control},
		{"/* a /* nested */ comment */ commit", control},
		{"\fcommit", control},
		{"-- x\rcommit", control},
		{"SELECT 1; SELECT 2; DO $$ BEGIN COMMIT; END $$", other},
		{"start_order", other},
		{"commit2", other},
		{"PREPARE q AS SELECT * FROM transaction", other},
		{"(SELECT 1) UNION (SELECT 2)", other},
		{"TABLE t", other},
		{"EXPLAIN ANALYZE DELETE FROM t", other},
		{"CALL settle_all()", other},
		{"DO $$ BEGIN PERFORM 1; END $$", other},
		{"SET LOCAL lock_timeout = '1s'", other},
		{"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", other},
		{"LISTEN paid", other},
		{"NOTIFY paid", other},
		{"SAVEPOINT a", other},
		{"RELEASE a", other},
		{"ROLLBACK TO a", other},
		{"rollback work to savepoint a", other},
		{"PREPARE p AS SELECT 1", other},
		{"COPY t FROM STDIN", other},
		{"CREATE TABLE selection (n int)", other},
		{"selection", other},

		{"BEGIN", control},
		{"begin isolation level serializable", control},
		{"START TRANSACTION", control},
		{"COMMIT", control},
		{"commit;", control},
		{"COMMIT AND CHAIN", control},
		{"COMMIT; SELECT 1", control},
		{"COMMIT PREPARED 'a'", control},
		{"END", control},
		{"ABORT", control},
		{"ROLLBACK", control},
		{"ROLLBACK; SELECT 1 AS to", control},
		{"ROLLBACK PREPARED 'a'", control},
		{"PREPARE TRANSACTION 'a'", control},
		{"-- harmless\nCOMMIT", control},
		{"/* harmless */ /* as well */ rollback", control},
	} {
		if got := kindOf(c.sql); got != c.want {
			t.Errorf("kindOf(%q) is %d, want %d", c.sql, got, c.want)
		}
	}
}

// What pgx takes as an option for a statement by itself it would send as a value, or leave out, in a batch.
func TestTravels(t *testing.T) {
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
		if got := travels(c.sql, c.args); got != c.want {
			t.Errorf("%s: travels is %t, want %t", c.name, got, c.want)
		}
	}
}

func TestSearchPath(t *testing.T) {
	for sql, want := range map[string]bool{
		"SET LOCAL search_path = tenant":                      true,
		"set search_path to tenant":                           true,
		"SELECT set_config('search_path', $1, true)":          true,
		"SHOW search_path":                                    false,
		"SELECT current_setting('search_path')":               false,
		"SET LOCAL lock_timeout = '1s'":                       false,
		"SELECT pg_catalog.set_config( 'search_path', '', t)": true,
	} {
		if got := movesTables(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}
