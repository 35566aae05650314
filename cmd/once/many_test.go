//go:build unix

package main

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// manyKeys adds records of the operation pay, whose ids are numbers: done ones, and a few of charge without an end.
func manyKeys(t *testing.T, at *target.Target, schema string, rows int) {
	t.Helper()
	const step = 500_000
	fill := func(operation string, status, from, to int) {
		if _, err := at.Tables.DB.ExecContext(t.Context(), `INSERT INTO `+schema+`.once_record (key, scope, operation, id, status, attempt, owner,
				lease_until, outcome, sum, outcome_until, key_until, due, created, updated)
			SELECT encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid, '', $2::text, i::text,
				$1::smallint, 1, gen_random_uuid(), CASE WHEN $1 = 1 THEN 1 END, '{"paid":true}', 5,
				CASE WHEN $1 = 4 THEN $3::bigint END, CASE WHEN $1 = 4 THEN $3::bigint END, CASE WHEN $1 = 4 THEN $3::bigint END, 1, 1
			FROM generate_series($4::int, $5::int) AS i, LATERAL (SELECT substring(sha256('once.key.1'::bytea || int8send(0) ||
				int8send(length($2::text)) || convert_to($2::text, 'UTF8') || int8send(length(i::text)) || convert_to(i::text, 'UTF8')), 1, 16) AS h) AS digest`,
			status, operation, time.Now().Add(1000*time.Hour).UnixMicro(), from, to); err != nil {
			t.Fatal(err)
		}
	}
	for from := 1; from <= rows; from += step {
		fill("pay", 4, from, min(from+step-1, rows))
	}
	fill("charge", 1, 1, 5)
}

// TestManyKeys is the command on a large table: whole processes of it, from their start to their end. ONCE_SOAK makes it
// 10 million rows, or ONCE_SOAK_ROWS, and holds it to a time; else they are few, and what is read is counted.
func TestManyKeys(t *testing.T) {
	rows, soak := 20_000, os.Getenv("ONCE_SOAK") != ""
	if soak {
		rows = 10_000_000
		if text := os.Getenv("ONCE_SOAK_ROWS"); text != "" {
			var err error
			if rows, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	from, at, schema := tablesOnPostgres(t)
	manyKeys(t, at, schema, rows)
	reads := func() (n int) {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		if err := at.Tables.DB.QueryRowContext(ctx, `SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0) FROM pg_stat_user_tables
			WHERE schemaname = $1 AND relname = 'once_record'`, schema).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	calls := 5
	if soak {
		calls = 100
	}
	for name, args := range map[string]func(i int) []string{
		"keys get":  func(i int) []string { return []string{"keys", "get", "pay", strconv.Itoa(1 + i*(rows/calls))} },
		"keys list": func(int) []string { return []string{"keys", "list"} },
		"keys list, later": func(i int) []string {
			return []string{"keys", "list", "--after", token(once.Key{Operation: "pay", ID: strconv.Itoa(1 + i*(rows/calls))})}
		},
		"keys list, by age": func(int) []string { return []string{"keys", "list", "--older-than", "24h"} },
		"unknown list":      func(int) []string { return []string{"unknown", "list"} },
	} {
		var all []time.Duration
		for i := range calls {
			cmd, _ := command(t, "once", append(args(i), "--url", from)...)
			cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0")
			begun := time.Now()
			output, err := cmd.CombinedOutput()
			all = append(all, time.Since(begun))
			if err != nil || len(output) == 0 {
				t.Fatalf("%s: %v: %s", name, err, output)
			}
		}
		slices.Sort(all)
		p95 := all[len(all)*95/100]
		t.Logf("%s of %d: median %v, p95 %v, at most %v", name, rows, all[len(all)/2], p95, all[len(all)-1])
		if soak && p95 > 200*time.Millisecond {
			t.Errorf("%s: p95 is %v", name, p95)
		}
	}

	// Its scrapes cost the database nothing, and its own looks what is unknown, however many keys there are.
	s := startService(t, from, "[reconcile]\npark = [\"nothing\"]\nevery = \"100ms\"\n")
	s.await("/metrics", `once_unknown_records{once_name="serve"} 5`)
	before := reads()
	for range 1000 {
		if status, text := s.get("/metrics"); status != 200 || !strings.Contains(text, "once_store_ready") {
			t.Fatal(status, text)
		}
	}
	s.await("/metrics", `once_reconcile_looks_total{once_name="serve"} [1-9][0-9]+`)
	s.stop()
	if read := reads() - before; read > 2000 {
		t.Errorf("1,000 scrapes have read %d rows of %d", read, rows)
	} else {
		t.Logf("1,000 scrapes, and the looks of as long, have read %d rows of %d", read, rows)
	}
}
